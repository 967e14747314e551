"""`make test-torch`: the real PyTorch wheel on the simulated GPU, as it runs and as it is recorded."""
