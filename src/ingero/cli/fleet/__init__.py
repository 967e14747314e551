"""`ingero fleet`, and the commands that ask many nodes."""
