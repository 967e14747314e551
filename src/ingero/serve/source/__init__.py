"""The recording behind a server."""
