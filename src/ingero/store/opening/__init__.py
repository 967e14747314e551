"""Opens database files that may be untrusted: their location, side files, and what they may not do."""
