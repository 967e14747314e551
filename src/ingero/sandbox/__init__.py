"""Unprivileged processes that read untrusted files and memory for the agent, and can be killed if they hang.

The agent may read every file and all memory, and so must not interpret what it finds there: an opener, which has only
the rights that opening takes and interprets nothing, hands over open files; a reader, which has no rights at all, makes
numbers and names of them. What passes a limit is killed and replaced, and the answer is that there is none.
"""
