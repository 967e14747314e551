"""Queries many nodes at once: their list, how they are reached, their answers, and what is missing."""
