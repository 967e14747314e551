"""Tests of the thread-state time, with workloads whose truth is known in another way."""
