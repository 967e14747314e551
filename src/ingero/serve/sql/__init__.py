"""Users' SQL, bounded in time, memory and rights."""
