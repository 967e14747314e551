"""Loading batches of a dataset: forked workers, and a thread that pins their results."""

from ingero.demo.workloads.minitorch.data.loader import Batch, DataLoader, WorkerError

__all__ = ["Batch", "DataLoader", "WorkerError"]
