"""Rows of a recording of any size, one at a time."""
