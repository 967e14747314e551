"""ingero: an eBPF agent that explains why a GPU is stalling."""

__version__ = "0.1.0"
