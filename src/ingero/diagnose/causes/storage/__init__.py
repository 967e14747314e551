"""Causes in disks, I/O limits, and network file systems."""
