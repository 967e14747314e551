"""Why threads slept: the critical path back through whoever woke them."""
