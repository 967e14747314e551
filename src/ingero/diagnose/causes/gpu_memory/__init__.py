"""Causes in GPU memory and its allocators."""
