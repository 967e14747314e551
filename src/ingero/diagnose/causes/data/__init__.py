"""Causes in the production of input data."""
