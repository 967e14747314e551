"""Searches file systems for libraries in a sandboxed process of its own, which can be killed if it hangs."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ingero.capture.foreign.memory_files import SandboxedMemoryFiles
from ingero.discover.disk_files import DiskFiles, FoundFile
from ingero.sandbox.messages import Message
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess

logger = logging.getLogger(__name__)

# Nobody waits for a search: all homes of a slow network file system take as long. Files are only asked for in passing.
_SEARCH_CPU_S, _SEARCH_S, _LOOK_S = 10.0, 30.0, 5.0


class SandboxedDiskFiles(DiskFiles):
    """Disk search through the sandbox. opener: a process for this alone, as a search takes long. For one thread.

    files: who asks about one process. count_drop: called with a counter's name. longest_s: of a search.
    """

    def __init__(
        self, opener: SandboxedProcess, files: SandboxedMemoryFiles, count_drop: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._opener, self._files, self._count_drop = opener, files, count_drop
        self.longest_s = _SEARCH_S

    def root(self, pid: int) -> tuple[int, int]:
        """See `DiskFiles.root`."""
        if not pid:
            return super().root(pid)
        try:
            device, inode = self._files.ask(pid, "root").content["root"]
            return int(device), int(inode)
        except (LookupError, TypeError, ValueError):
            raise _malformed() from None

    def present(self, paths: Sequence[Path]) -> list[bool]:
        """See `DiskFiles.present`."""
        keys = self._ask("keys", _LOOK_S, paths=list(map(str, paths))).content.get("keys")
        if not isinstance(keys, list) or len(keys) != len(paths):
            raise _malformed()
        return [one is not None for one in keys]

    def copies(
        self,
        root: Path,
        *,
        prefixes: Sequence[Path] = (),
        environs: Sequence[Mapping[str, str]] = (),
        homes: Sequence[Path] | None = None,
        has_well_known: bool = True,
    ) -> list[FoundFile]:
        """See `DiskFiles.copies`."""
        try:
            answer = self._ask(
                "copies",
                self.longest_s,
                root=str(root),
                prefixes=list(map(str, prefixes)),
                environs=[dict(one) for one in environs],
                homes=None if homes is None else list(map(str, homes)),
                has_well_known=has_well_known,
            )
            return [FoundFile(Path(str(path)), int(inode), int(ns)) for path, inode, ns in answer.content["copies"]]
        except (LookupError, TypeError, ValueError):
            raise _malformed() from None
        finally:
            self._opener.close()  # a search comes every few seconds, and its memory is worth more

    def _ask(self, task: str, wall_s: float, **content: object) -> Message:
        try:
            return self._opener.ask(task, content, cpu_s=_SEARCH_CPU_S, wall_s=wall_s)
        except NoAnswerError as error:
            self._count_drop("library_searches_given_up")
            logger.warning("a search for libraries on disk was given up: %s", error.reason)
            raise TimeoutError(errno.ETIMEDOUT, error.reason) from None
        except RefusedAnswerError as error:
            raise OSError(error.errno or errno.EIO, error.reason) from None


def _malformed() -> OSError:
    return OSError(errno.EBADMSG, "the reply is malformed")
