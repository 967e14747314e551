"""What threads of others wait for, read by the opener of the sandbox, which can be ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ingero.capture.foreign.memory_files import SandboxedMemoryFiles
from ingero.discover import waiting
from ingero.discover.wait_files import Pipes, WaitFiles
from ingero.discover.waiting import Wait

_AT_ONCE = 32  # threads or processes: a thread takes 0.2 ms, and an answer has to come in time
_ALONE_S = 60.0
_MOST_TEXT = 512


class SandboxedWaitFiles(WaitFiles):
    """files: who asks about one process, and knows who did not answer. For one thread."""

    def __init__(self, files: SandboxedMemoryFiles) -> None:
        super().__init__()
        self._files, self._alone_until_s = files, 0.0

    def waits(self, pid: int, tids: Sequence[int]) -> list[Wait | None]:
        """As there; of a process that does not answer it is known that it waits, and how often it was switched."""
        found: list[Wait | None] = []
        for begin in range(0, len(tids), _AT_ONCE):
            some = tids[begin : begin + _AT_ONCE]
            try:
                told = self._files.ask(pid, "waits", tids=some).content["waits"]
                taken = [None if one is None else waiting.taken(one) for one in told]
                found += taken if len(taken) == len(some) else [None] * len(some)
            except (TimeoutError, BlockingIOError):
                found += [waiting.unanswered(pid, tid, self._proc) for tid in some]
            except (OSError, LookupError, TypeError, ValueError):
                found += [None] * len(some)
        return found

    def pipes(self, pids: Sequence[int], wanted: str) -> Pipes:
        """As there: of many processes at once, and one by one where that fails."""
        found: list[tuple[int, str, str]] = []
        missing = {pid for pid in pids if self._files.is_paused(pid)}
        cpu_s = 0.0
        asked = [pid for pid in pids if pid not in missing]
        for begin in range(0, len(asked), _AT_ONCE):
            some = asked[begin : begin + _AT_ONCE]
            together = self._together(some, wanted)
            answers = [together] if together else [self._one(pid, wanted) for pid in some]
            missing |= {pid for pid, one in zip(some, answers, strict=False) if not together and one is None}
            for one in filter(None, answers):
                try:
                    found += [(int(pid), str(number), str(name)[:_MOST_TEXT]) for pid, number, name in one["pipes"]]
                    cpu_s += float(one["cpu_s"])
                except (LookupError, TypeError, ValueError):
                    missing.update(some)
        return Pipes(found, frozenset(missing), cpu_s)

    def _together(self, pids: Sequence[int], wanted: str) -> dict[str, Any] | None:
        """None: one of them does not answer; for a while each is asked for itself, which tells who."""
        if time.monotonic() < self._alone_until_s:
            return None
        told = self._files.ask_of_many("pipes", pids=pids, wanted=wanted)
        if told is None:
            self._alone_until_s = time.monotonic() + _ALONE_S
            return None
        return told.content

    def _one(self, pid: int, wanted: str) -> dict[str, Any] | None:
        try:
            return self._files.ask(pid, "pipes", pids=[pid], wanted=wanted).content
        except OSError:
            return None

    def sides(self, pid: int, numbers: Sequence[str]) -> list[tuple[str, bool | None]]:
        """As there."""
        try:
            told = self._files.ask(pid, "sides", numbers=list(numbers)).content["sides"]
            found = [(str(name)[:_MOST_TEXT], None if side is None else bool(side)) for name, side in told]
        except (OSError, LookupError, TypeError, ValueError):
            found = []
        return found if len(found) == len(numbers) else [("", None)] * len(numbers)

    def folder(self, pid: int) -> str:
        """As there."""
        try:
            return str(self._files.ask(pid, "folder").content.get("folder", ""))[:_MOST_TEXT]
        except OSError:
            return ""

    def shared_memory(self, pid: int) -> tuple[int, int] | None:
        """As there."""
        try:
            size, free = self._files.ask(pid, "shared_memory").content["bytes"]
            return int(size), int(free)
        except (OSError, LookupError, TypeError, ValueError):
            return None
