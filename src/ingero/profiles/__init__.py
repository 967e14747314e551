"""Reads profiles of other tools into rows of a recording."""
