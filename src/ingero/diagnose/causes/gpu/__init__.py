"""Causes in the GPU, its driver, its link, and who else uses them."""
