"""Labeled runs against the simulator: is the cause right, the culprit, the line, the loss; and is the rest silence?

The plan (`plan/`) is written down before any run; `python -m bench.incidents` runs, scores and judges it.
"""
