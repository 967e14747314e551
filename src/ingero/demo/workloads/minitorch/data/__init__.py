"""Loading batches: a dataset, forked workers, and a thread that pins their results."""

from ingero.demo.workloads.minitorch.data.dataset import ImageDataset
from ingero.demo.workloads.minitorch.data.loader import Batch, DataLoader, WorkerError

__all__ = ["Batch", "DataLoader", "ImageDataset", "WorkerError"]
