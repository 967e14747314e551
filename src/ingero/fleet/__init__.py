"""Many nodes asked at once: who they are, how they are reached, what they answer, and what is missing of it."""
