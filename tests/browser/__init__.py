"""A real browser, driven over its debugging pipe."""
