"""Nodes that others know: of a Slurm job, behind a selector in Kubernetes, of a service in the DNS.

Whoever answers is asked for a bounded time, and what it answers is taken for hostile like what a node answers.
"""
