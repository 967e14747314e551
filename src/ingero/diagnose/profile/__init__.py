"""Reports on imported profiles: GPU time as measured, and what the host did while the GPU was idle."""
