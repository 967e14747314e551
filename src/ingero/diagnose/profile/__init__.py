"""What an imported profile says: the GPU's time as measured, and what the host did while it was idle."""
