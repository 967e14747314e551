"""Profiles that other tools made, read into rows of a recording."""
