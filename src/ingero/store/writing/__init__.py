"""The recorder's end: tables, the writing thread, limits of size, versions."""
