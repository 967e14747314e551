"""Causes in the network: TCP retransmits."""
