"""Writes recordings: tables, the writing thread, size limits, versions."""
