"""These tests change the machine they run on (clock, Yama, lockdown): they are collected in a guest only."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("INGERO_GUEST") else ["test_*.py"]
