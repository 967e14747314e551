"""Scenarios that can be recorded on any machine, and the simulated GPU they run on."""
