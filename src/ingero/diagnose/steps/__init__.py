"""Which intervals are a program's steps, what sets their pace, and how far its host is ahead of the GPU."""
