"""Checks that the process of --pid is in the recording, since the answer would be empty otherwise."""

from __future__ import annotations

from ingero.errors import IngeroError
from ingero.store.reader import Reader

_MAX_SHOWN = 20


class UnknownProcessError(IngeroError):
    """The recording has no process with that pid."""


def check_pid(reader: Reader, pid: int | None) -> None:
    """Raises UnknownProcessError if `pid` is not in the recording; the hint names traced processes first."""
    if pid is None:
        return
    processes = reader.processes()
    if all(process.pid != pid for process in processes):
        shown = sorted(processes, key=lambda process: not process.is_traced)[:_MAX_SHOWN]
        known = ", ".join(f"{process.pid} ({process.name})" for process in shown)
        raise UnknownProcessError(f"no process {pid} in this recording", hint=f"--pid with one of: {known}")
