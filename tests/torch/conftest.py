"""These tests need the wheel that `python -m tests.torch` has installed: they are collected there only."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("INGERO_TEST_TORCH") else ["test_*.py"]
