"""What every server here needs before it answers: addresses, TLS, tokens, limits."""
