"""Streams the rows of a recording of any size, one at a time."""
