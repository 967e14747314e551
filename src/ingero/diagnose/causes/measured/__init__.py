"""Causes in imported profiles, in which a profiler measured what the GPU did."""
