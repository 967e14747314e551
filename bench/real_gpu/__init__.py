"""PyTorch programs on a real GPU, untraced and traced: what tracing costs, and whether steps and verdicts are right."""
