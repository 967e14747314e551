"""What a recording can say about a window, read once when it is first asked for."""
