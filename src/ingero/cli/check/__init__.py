"""`ingero check`: the machine, or a recording."""
