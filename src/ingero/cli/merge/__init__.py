"""`ingero merge`: the recordings of several nodes in one file."""
