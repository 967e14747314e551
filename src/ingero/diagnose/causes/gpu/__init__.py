"""Causes in the GPU, its driver, its PCIe link, and its other users."""
