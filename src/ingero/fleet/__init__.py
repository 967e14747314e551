"""Many nodes: what is asked of each, how their answers become one, and what their clocks are worth."""
