"""What the host and its GPUs did, second by second."""
