"""One agent per machine: two would probe every call twice, each counting the other's cost as the workload's."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ingero.errors import IngeroError
from ingero.store.lock_file import HeldError, LockFile

RUN_FOLDER_VARIABLE = "INGERO_RUN_DIR"

# Process 1 is the machine's where the agent shares its process ids, as it must to see the targets; so an agent in a
# container and one on the machine meet in the same folder. Elsewhere it is the container's own init.
_RUN_FOLDERS = (Path("/proc/1/root/run/ingero"), Path("/run/ingero"))
_LOCK = "agent.lock"


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who traces this machine. since_s: unix time. database: "" if nothing is kept."""

    pid: int
    command: str
    since_s: float
    database: str


class AgentRunningError(IngeroError):
    """Another agent traces this machine."""

    def __init__(self, first: AgentFacts | None) -> None:
        if first is None:
            super().__init__("another ingero traces this machine", hint="pgrep -af 'ingero.*trace' names it")
            return
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.since_s))
        where = f"into {first.database}" if first.database else "without recording"
        look = f"look at it with `ingero explain --db {first.database}`, or " if first.database else ""
        super().__init__(
            f"another ingero traces this machine: pid {first.pid}, since {since}, {where}: {first.command}",
            hint=f"{look}end it with `kill {first.pid}`",
        )


class NoRunFolderError(IngeroError):
    """The folder of the lock cannot be written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"cannot make {folder / _LOCK}, which keeps two agents from tracing one machine: {reason}",
            hint=f"set {RUN_FOLDER_VARIABLE} to a folder that all agents here see (containers: mount /run/ingero)",
        )


@contextmanager
def only_agent(
    database: Path | None, environ: Mapping[str, str], *, folder: Path | None = None
) -> Iterator[AgentFacts]:
    """Makes this process the agent of this machine while the block runs; a killed one leaves no lock either.

    database: None if nothing is kept. folder: of the lock; `INGERO_RUN_DIR` by default, else the machine's /run/ingero.

    Raises:
        AgentRunningError: another one is.
        NoRunFolderError: the lock cannot be made.
    """
    facts = AgentFacts(
        pid=os.getpid(),
        command=" ".join(sys.argv),
        since_s=time.time(),
        database=str(database or ""),
    )
    lock = _locked(folder or _run_folder(environ), facts)
    try:
        yield facts
    finally:
        lock.release()


def _run_folder(environ: Mapping[str, str]) -> Path:
    named = environ.get(RUN_FOLDER_VARIABLE)
    if named:
        return Path(named)
    return next((folder for folder in _RUN_FOLDERS if _is_folder(folder.parent)), _RUN_FOLDERS[-1])


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # without ptrace access to process 1
        return False


def _locked(folder: Path, facts: AgentFacts) -> LockFile:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        return LockFile(folder / _LOCK, msgspec.json.encode(facts).decode())
    except HeldError as error:
        raise AgentRunningError(_first(error.owner)) from None
    except OSError as error:
        raise NoRunFolderError(folder, error.strerror or str(error)) from error


def _first(text: str) -> AgentFacts | None:
    try:
        return msgspec.json.decode(text, type=AgentFacts)
    except msgspec.DecodeError:  # it has the lock and has not written its name yet
        return None
