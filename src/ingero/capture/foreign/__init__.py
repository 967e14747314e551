"""What processes of the sandbox read of other people's files and memory for the agent."""
