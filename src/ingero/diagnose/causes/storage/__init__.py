"""Causes in disks, limits of I/O, and network file systems."""
