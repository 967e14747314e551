"""Reads what threads of other processes wait for, through the sandbox, which can be killed if it hangs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ingero.capture.foreign.memory_files import SandboxedMemoryFiles
from ingero.discover import waiting
from ingero.discover.wait_files import OpenPipes, WaitFiles
from ingero.discover.waiting import Wait

_AT_ONCE = 32  # threads or processes: a thread takes 0.2 ms, and an answer has to come in time
_ALONE_S = 60.0
_MAX_TEXT = 512


class SandboxedWaitFiles(WaitFiles):
    """Wait files through the sandbox. files: asks about one process, and knows which did not answer. For one thread."""

    def __init__(self, files: SandboxedMemoryFiles) -> None:
        super().__init__()
        self._files, self._alone_until_s = files, 0.0

    def waits(self, pid: int, tids: Sequence[int]) -> list[Wait | None]:
        """See `WaitFiles.waits`; without an answer: that it waits, and its context switches."""
        found: list[Wait | None] = []
        for begin in range(0, len(tids), _AT_ONCE):
            some = tids[begin : begin + _AT_ONCE]
            try:
                answer = self._files.ask(pid, "waits", tids=some).content["waits"]
                taken = [None if one is None else waiting.wait_from(one) for one in answer]
                found += taken if len(taken) == len(some) else [None] * len(some)
            except (TimeoutError, BlockingIOError):
                found += [waiting.unanswered(pid, tid, self._proc) for tid in some]
            except (OSError, LookupError, TypeError, ValueError):
                found += [None] * len(some)
        return found

    def pipes(self, pids: Sequence[int], wanted: str) -> OpenPipes:
        """See `WaitFiles.pipes`: of many processes at once, and one by one where that fails."""
        found: list[tuple[int, str, str]] = []
        missing = {pid for pid in pids if self._files.is_paused(pid)}
        cpu_s = 0.0
        asked = [pid for pid in pids if pid not in missing]
        for begin in range(0, len(asked), _AT_ONCE):
            some = asked[begin : begin + _AT_ONCE]
            together = self._together(some, wanted)
            answers = [together] if together else [self._one(pid, wanted) for pid in some]
            missing |= {pid for pid, answer in zip(some, answers, strict=False) if not together and answer is None}
            for answer in filter(None, answers):
                try:
                    found += [(int(pid), str(number), str(name)[:_MAX_TEXT]) for pid, number, name in answer["pipes"]]
                    cpu_s += float(answer["cpu_s"])
                except (LookupError, TypeError, ValueError):
                    missing.update(some)
        return OpenPipes(found, frozenset(missing), cpu_s)

    def _together(self, pids: Sequence[int], wanted: str) -> dict[str, Any] | None:
        """Asks about all at once. None: one does not answer; for a while each is asked alone, to find out which."""
        if time.monotonic() < self._alone_until_s:
            return None
        answer = self._files.ask_of_many("pipes", pids=pids, wanted=wanted)
        if answer is None:
            self._alone_until_s = time.monotonic() + _ALONE_S
            return None
        return answer.content

    def _one(self, pid: int, wanted: str) -> dict[str, Any] | None:
        try:
            return self._files.ask(pid, "pipes", pids=[pid], wanted=wanted).content
        except OSError:
            return None

    def sides(self, pid: int, numbers: Sequence[str]) -> list[tuple[str, bool | None]]:
        """See `WaitFiles.sides`."""
        try:
            answer = self._files.ask(pid, "sides", numbers=list(numbers)).content["sides"]
            found = [(str(name)[:_MAX_TEXT], None if side is None else bool(side)) for name, side in answer]
        except (OSError, LookupError, TypeError, ValueError):
            found = []
        return found if len(found) == len(numbers) else [("", None)] * len(numbers)

    def folder(self, pid: int) -> str:
        """See `WaitFiles.folder`."""
        try:
            return str(self._files.ask(pid, "folder").content.get("folder", ""))[:_MAX_TEXT]
        except OSError:
            return ""

    def shared_memory(self, pid: int) -> tuple[int, int] | None:
        """See `WaitFiles.shared_memory`."""
        try:
            size, free = self._files.ask(pid, "shared_memory").content["bytes"]
            return int(size), int(free)
        except (OSError, LookupError, TypeError, ValueError):
            return None
