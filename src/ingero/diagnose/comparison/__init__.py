"""Two recordings of one program: what changed, and whether that is more than noise."""
