"""Causes, one folder per subject: a file for each cause (`RULE`), and the helpers that only these use."""
