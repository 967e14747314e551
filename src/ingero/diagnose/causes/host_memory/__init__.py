"""Causes in the host's memory: reclaim, page faults, processes that were killed."""
