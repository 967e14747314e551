"""Causes in imported profiles, where a profiler measured the GPU's activity."""
