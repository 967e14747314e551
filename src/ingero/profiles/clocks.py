"""Where a profile's times lie on the unix clock."""

from __future__ import annotations

# Where a file does not say it: 2001-09-09, the same for every file, so that ranks of one job stay beside each other.
# Times that count from elsewhere (the machine's start, the begin of a quarter) are below it, unix times above.
UNDATED_NS = 1_000_000_000_000_000_000


def undated(file: str) -> str:
    """What is said of a file without a date."""
    return f"{file} does not say when it was recorded: its times are counted from 2001-09-09"
