"""Small files and device nodes in the roots of processes, read through the sandbox.

Who a process is stands in such files, and its user may have put a file system there that never answers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

from ingero.capture.foreign.shares import UserShares
from ingero.discover.rooted import RootFiles
from ingero.sandbox.messages import Message
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess, SpareProcess

_WALL_S, _CPU_S = 0.5, 0.5  # the loop waits for it; an answer takes a millisecond


class SandboxedRootFiles(RootFiles):
    """Root files through the sandbox. opener: its process. shares: of the loop's time.

    count_drop: called with a counter's name for each missing answer.

    What did not come in time is taken from the share of the process's user, who has none for a while then.
    """

    def __init__(
        self, opener: SandboxedProcess | SpareProcess, shares: UserShares, count_drop: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._opener, self._shares, self._count_drop = opener, shares, count_drop

    def read(self, pid: int, path: str, most_bytes: int) -> bytes:
        """See `RootFiles.read`."""
        return self._ask(pid, "read", path=path, most_bytes=most_bytes).data[:most_bytes]

    def devices(self, pid: int, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """See `RootFiles.devices`."""
        found = self._ask(pid, "devices", paths=list(paths)).content.get("devices")
        if not isinstance(found, list) or len(found) != len(paths):
            raise OSError(errno.EBADMSG, "the reply is malformed")
        return [(int(one[0]), int(one[1])) if one else None for one in found]

    def _ask(self, pid: int, task: str, **content: Any) -> Message:
        owner = self._shares.owner(pid)
        if not self._shares.has_some(owner):
            self._count_drop("root_files_given_up")
            raise OSError(errno.EAGAIN, "its user has used up the time there is")
        try:
            return self._opener.ask(task, {"pid": pid, **content}, cpu_s=_CPU_S, wall_s=_WALL_S, is_patient=True)
        except NoAnswerError as error:
            self._count_drop("root_files_given_up")
            self._shares.spend(owner, _WALL_S)
            self._shares.hold(owner, error.killed)
            raise OSError(errno.ETIMEDOUT, error.reason) from None
        except RefusedAnswerError as error:
            raise OSError(error.errno or errno.EIO, os.strerror(error.errno or errno.EIO)) from None
