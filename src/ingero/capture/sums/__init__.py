"""The kernel's exact sums, read once a second."""
