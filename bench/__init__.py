"""Measurements of what ingero costs and how much it can take; see README.md."""
