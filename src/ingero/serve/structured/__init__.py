"""What programs read: JSON, CSV, Parquet, and rows between machines."""
