"""A recording in the browser: an HTTP interface for machines, and a page on top of it."""
