"""Are the threads' accounts right? Each workload's truth is known by another way."""
