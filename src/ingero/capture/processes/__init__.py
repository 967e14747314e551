"""Which processes are traced, and what is recorded of each."""
