"""Causes in collectives and in the ranks that make them."""
