"""What tracing costs, and what is traced less so that it stays within its limits."""
