"""The process that --pid names: it has to be in the recording, or the answer would be an empty one."""

from __future__ import annotations

from ingero.errors import IngeroError
from ingero.store.reader import Reader

_MOST_SHOWN = 20


class UnknownProcessError(IngeroError):
    """The recording has no process with that pid."""


def check_pid(reader: Reader, pid: int | None) -> None:
    """Raises UnknownProcessError where a pid is given that was not seen; targets are named first."""
    if pid is None:
        return
    processes = reader.processes()
    if all(process.pid != pid for process in processes):
        shown = sorted(processes, key=lambda process: not process.is_traced)[:_MOST_SHOWN]
        known = ", ".join(f"{process.pid} ({process.name})" for process in shown)
        raise UnknownProcessError(f"no process {pid} in this recording", hint=f"--pid with one of: {known}")
