"""Causes in recordings of Ingero 0.8 to 0.17, found from timing alone."""
