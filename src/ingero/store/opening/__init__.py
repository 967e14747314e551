"""Opening somebody's file: where it is, what lies beside it, and what it may not do."""
