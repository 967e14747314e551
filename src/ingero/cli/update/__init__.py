"""Whether a newer version exists."""
