"""Causes in who else used the CPU, and in what the scheduler and the limits of a cgroup allowed."""
