"""Waits of the launching thread for another process: their kinds, and what is known of one kind in a case."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ingero.diagnose.findings import Bucket, CodeLine


class WaitKind(enum.Enum):
    """What kind of wait it was: (what it did, how the wait ended), both in words."""

    PROGRAM = ("waiting for {partner}, a program that it ran{times}", "until {partner}, which it had started, was done")
    KERNEL = ("in uninterruptible sleep until {partner} let it go on", "in the kernel, until {partner} let it go on")
    REQUEST = (
        "in a write or another file or socket call, until {partner} had taken it",
        "in a system call with which it asked for something, until {partner} woke it",
    )
    READ = ("blocking its event loop until {partner} answered", "until {partner} woke it")
    LOCK = ("waiting for the lock of a file that {partner} held", "until {partner} released the lock")
    ANSWER = ("waiting for the answer of {partner}", "until {partner} woke it")
    BARRIER = ("waiting until {partner}, another rank, had come", "until {partner} had come")
    SPIN = ("polling without a sleep for what {partner} gives it", "polled until {partner} was done")
    TIMEOUT = ("waiting for an answer that did not come before its own timeout", "until its own timeout ended the wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcWait:
    """Waits of one kind.

    partners: (pid, name, ns), longest first; pid 0: on another host, or none. runs: how often the program was run.
    doing: what the partner did, as text. may_relay: the partner may only pass on that another rank has come.
    """

    kind: WaitKind
    claims: dict[Bucket, int]
    partners: Sequence[tuple[int, str, int]]
    line: CodeLine | None
    samples: int
    runs: int = 0
    doing: str = ""
    may_relay: bool = False
