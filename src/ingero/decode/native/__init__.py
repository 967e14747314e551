"""Native stacks: from a thread's registers and a copy of its stack to the names of the functions it was in."""
