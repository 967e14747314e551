"""Machine-readable output: JSON, CSV, Parquet, and rows between hosts."""
