"""Causes in CPU use by other processes, and in what the scheduler and cgroup limits allowed."""
