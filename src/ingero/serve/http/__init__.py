"""Shared parts of all HTTP servers here: addresses, TLS, tokens, limits."""
