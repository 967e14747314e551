"""Which files of the traced libraries there are, and the probes on them."""
