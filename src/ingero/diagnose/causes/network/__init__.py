"""Causes in the network."""
