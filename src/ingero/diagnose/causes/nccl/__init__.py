"""Causes in collectives and in the ranks that call them."""
