"""Labeled disturbances of a workload on the simulated GPU: each switched on and off, and everything put back."""

from ingero.demo.faults.catalogue import NAMES, Fault
from ingero.demo.faults.model import FaultError, Injection, Workload, WorkloadSetup

__all__ = ["NAMES", "Fault", "FaultError", "Injection", "Workload", "WorkloadSetup"]
