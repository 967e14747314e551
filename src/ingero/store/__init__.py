"""SQLite and all SQL of the project."""
