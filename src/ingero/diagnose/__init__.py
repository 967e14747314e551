"""Evidence in, findings out: pure functions without clock, SQL or printing."""
