"""Stacks: of recorded calls, of sampled and blocked threads, of calls and processes that hang."""
