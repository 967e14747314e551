"""Causes in the program's own host code: locks, garbage collection, sleeps, other processes, hangs."""
