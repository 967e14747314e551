"""Numpy structured arrays, for the diagnosis."""
