"""Causes in the producers of input data."""
