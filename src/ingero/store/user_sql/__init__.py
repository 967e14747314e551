"""Limits for users' SQL statements: names, time and memory."""
