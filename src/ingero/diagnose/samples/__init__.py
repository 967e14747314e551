"""Where threads were, from samples of their stacks, and what kind of process that shows."""
