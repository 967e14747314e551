"""The critical path through threads that waited for each other, and waits for the interpreter lock."""
