"""The loop that empties the rings, reads the sums of each second, and hands both to the writer."""
