"""Causes in the CUDA calls that a program makes: launches, copies, syncs, graphs."""
