"""One loss of time to be explained: the process, the time range, and what of it no cause has claimed yet."""
