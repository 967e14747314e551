"""Discovers nodes: of a Slurm job, behind a selector in Kubernetes, of a service in the DNS.

Queries are bounded in time, and answers are as untrusted as those of nodes.
"""
