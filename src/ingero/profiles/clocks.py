"""The unix time of profiles whose files have no date."""

from __future__ import annotations

# The date of files without one: 2001-09-09, the same for every file, so that ranks of one job stay aligned.
# Times that count from elsewhere (boot, the start of a quarter) are below it, unix times above.
UNDATED_NS = 1_000_000_000_000_000_000


def undated(file: str) -> str:
    """The remark about a file without a date."""
    return f"{file} does not say when it was recorded: its times are counted from 2001-09-09"
