"""What people met with GPU jobs, made on the simulated GPU, and whether it is explained as it is: a module for each."""
