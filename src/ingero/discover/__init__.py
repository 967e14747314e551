"""What is on this machine: processes, library copies, kernel features, GPUs, containers."""
