"""Allows one agent per host: two would probe each call twice, and count each other's cost as the workload's."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from ingero.attach.libbpf import LibbpfMissingError
from ingero.attach.machine_marks import MachineMark
from ingero.errors import IngeroError
from ingero.program import command
from ingero.store.opening.lock_file import HeldError, LockFile, NotALockError

logger = logging.getLogger(__name__)

RUN_FOLDER_VARIABLE = "INGERO_RUN_DIR"

# Process 1 is the machine's where the agent shares its process ids, as it must to see other processes; so an agent in a
# container and one on the machine meet in the same folder. Elsewhere it is the container's own init.
_RUN_FOLDERS = (Path("/proc/1/root/run/ingero"), Path("/run/ingero"))
_LOCK = "agent.lock"
_MARK = "ingero_agent"


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent that traces this host. since_s: unix time. database: "" if nothing is stored.

    left: the database of the agent before, if that was killed.
    """

    pid: int
    command: str
    since_s: float
    database: str
    left: str = ""


class AgentRunningError(IngeroError):
    """Another agent traces this host."""

    def __init__(self, first: AgentFacts | None) -> None:
        if first is None:
            super().__init__("another ingero is tracing this host", hint="pgrep -af 'ingero.*trace' names it")
            return
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.since_s))
        where = f"into {first.database}" if first.database else "without recording"
        look = f"read it with `{command('explain', '--db', _path_from_here(first))}`, or " if first.database else ""
        super().__init__(
            f"another ingero is tracing this host: pid {first.pid}, since {since}, {where}: {first.command}",
            hint=f"{look}end it with `kill {first.pid}`",
        )


class NoRunFolderError(IngeroError):
    """The folder of the lock cannot be written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"cannot create {folder / _LOCK}, which keeps two agents from tracing one host: {reason}",
            hint=f"set {RUN_FOLDER_VARIABLE} to a folder that all agents here share (containers: mount /run/ingero)",
        )


@contextmanager
def only_agent(
    database: Path | None, environ: Mapping[str, str], *, folder: Path | None = None, mark: str = _MARK
) -> Iterator[AgentFacts]:
    """Makes this process the only agent of this host while the block runs; a killed agent leaves no lock.

    database: None if nothing is kept. folder: of the lock; `INGERO_RUN_DIR` by default, else the machine's /run/ingero.
    mark: its name in the kernel, where agents meet that share no folder; none is left if a folder is named.

    Raises:
        AgentRunningError: another one is.
        NoRunFolderError: the lock cannot be made.
    """
    facts = AgentFacts(
        pid=os.getpid(),
        command=" ".join(sys.argv),
        since_s=time.time(),
        database=str(database.absolute()) if database else "",
    )
    named = folder or _named_folder(environ)
    with ExitStack() as held:
        lock = _locked(named or _run_folder(), facts)
        held.callback(lock.release)
        if named is None:
            _leave_mark(mark, facts, held)
        before = _first(lock.left)
        yield msgspec.structs.replace(facts, left=before.database) if before else facts


def _leave_mark(name: str, facts: AgentFacts, held: ExitStack) -> None:
    try:
        mark = MachineMark(name, _text(facts))
        held.callback(mark.close)
        earlier = mark.earlier()
    except (OSError, LibbpfMissingError) as error:  # the lock alone must do
        logger.info("agents in containers with their own /run are not detected: %s", error)
        return
    if earlier is not None:
        raise AgentRunningError(_first(earlier))


def _named_folder(environ: Mapping[str, str]) -> Path | None:
    return Path(named) if (named := environ.get(RUN_FOLDER_VARIABLE)) else None


def _run_folder() -> Path:
    return next((folder for folder in _RUN_FOLDERS if _is_folder(folder.parent)), _RUN_FOLDERS[-1])


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # without ptrace access to process 1
        return False


def _locked(folder: Path, facts: AgentFacts) -> LockFile:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        return LockFile(folder / _LOCK, _text(facts))
    except HeldError as error:
        raise AgentRunningError(_first(error.owner)) from None
    except NotALockError:
        raise NoRunFolderError(folder, "a file of another program has this name") from None
    except OSError as error:
        raise NoRunFolderError(folder, error.strerror or str(error)) from error


def _text(facts: AgentFacts) -> str:
    return msgspec.json.encode(facts).decode()


def _first(text: str) -> AgentFacts | None:
    try:
        return msgspec.json.decode(text, type=AgentFacts)
    except msgspec.DecodeError:  # it has the lock and has not written its name yet; or there was none
        return None


def _path_from_here(first: AgentFacts) -> str:
    """The path of the other agent's database; through its root if that is another container's."""
    try:
        theirs, ours = (Path(f"/proc/{pid}/ns/mnt").stat().st_ino for pid in (first.pid, "self"))
    except OSError:
        return first.database
    return first.database if theirs == ours else f"/proc/{first.pid}/root{first.database}"
