"""Causes in host memory: reclaim, page faults, OOM kills."""
