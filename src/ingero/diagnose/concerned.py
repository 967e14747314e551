"""Which incidents are about a process."""

from __future__ import annotations

from collections.abc import Collection


def is_about(pid: int, victims: Collection[int], root: str) -> bool:
    """Whether an incident with these victims (pids) and this root is about a process, or about nobody in particular.

    An event without lost time has no victims; whom it happened to is the first word of its root.
    """
    if victims:
        return pid in victims
    first = root.partition(" ")[0]
    return not first.isdecimal() or int(first) == pid
