"""Perfetto's own trace processor, to ask it what it makes of an exported file."""
