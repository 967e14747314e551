"""`trace --on-incident`: a command that is run as incidents open and close, by a process that has no rights."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ingero.cli.config.settings import TraceSettings
from ingero.cli.output import echo
from ingero.cli.trace.incident_event import incident_event
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.foreign_text import shell_word, visible
from ingero.sandbox.command_runner import NOBODY, CommandRunner, Ended, User
from ingero.store.opening.locations import Owner

WALL_S = 10.0  # of one run
MOST_WAITING = 16
_END_S = 10.0  # at the end of a recording, for runs that are waiting; whoever stops it is not kept longer

_QUEUE_FULL, _NOT_RUN = "incident_commands_queue_full", "incident_commands_not_run"
_FAILED, _TIMED_OUT = "incident_commands_failed", "incident_commands_timed_out"

_log = logging.getLogger(__name__)


class IncidentCommand:
    """One run at a time, the rest waits in a queue of MOST_WAITING; what finds no room is counted.

    `finding` and `drops` never wait. node, recording: what the command is told of where it happened.
    """

    def __init__(self, runner: CommandRunner, *, node: str, recording: str) -> None:
        self._runner, self._node, self._recording = runner, node, recording
        self._queue: queue.Queue[Change | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._is_over = False
        self._thread = threading.Thread(target=self._run_all, name="ingero-command", daemon=True)
        self._has_started = False

    def start(self) -> str:
        """Waits until commands can be run, and answers which program that is.

        Raises:
            CommandError: none can.
        """
        program = self._runner.start()
        self._thread.start()
        self._has_started = True
        return program

    def finding(self, change: Change) -> None:
        """Has the command run, if an incident opened or closed."""
        if change.kind is ChangeKind.UPDATED or self._is_over:
            return
        try:
            self._queue.put_nowait(change)
        except queue.Full:
            self._count(_QUEUE_FULL)

    def drops(self) -> dict[str, int]:
        """Runs that did not happen or did not work since this was last asked, by counter."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def finish(self) -> None:
        """Waits for what is waiting, 10 s at most; what is left is counted. Nothing is run after it."""
        if not self._has_started or self._is_over:
            return
        until_s = time.monotonic() + _END_S
        while self._queue.unfinished_tasks and time.monotonic() < until_s and self._thread.is_alive():
            time.sleep(0.01)
        self._is_over = True
        left = self._queue.unfinished_tasks
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        if left:
            self._count(_NOT_RUN, left)
            _log.warning("--on-incident: %d runs were skipped or cut short: the recording has ended", left)

    def _run_all(self) -> None:
        while not self._is_over:
            change = self._queue.get()
            if change is None or self._is_over:
                return
            try:
                event = incident_event(change, node=self._node, recording=self._recording, now_ns=time.time_ns())
                self._note(change, self._runner.run(event))
            except Exception:  # a bug of ours must not end the runs of weeks
                _log.exception("--on-incident: a run was skipped")
                self._count(_NOT_RUN)
            finally:
                self._queue.task_done()

    def _note(self, change: Change, ended: Ended) -> None:
        if self._is_over or ended.exit_code == 0:  # whoever ended it has counted it
            return
        if ended.is_timed_out:
            counter, how = _TIMED_OUT, f"killed after {WALL_S:.0f} s"
        elif ended.exit_code is None:
            counter, how = _NOT_RUN, ended.error
        else:
            counter = _FAILED
            how = f"signal {-ended.exit_code}" if ended.exit_code < 0 else f"exit code {ended.exit_code}"
        self._count(counter)
        lines = ended.output.strip().splitlines()
        said = f"; it printed: {visible(lines[-1][:300])}" if lines else ""
        what = f"incident {change.incident.number} {change.kind.value}"
        _log.warning("--on-incident: %s: %s%s", what, how, said)

    def _count(self, counter: str, count: int = 1) -> None:
        with self._lock:
            self._counts[counter] += count


@contextmanager
def commanding(settings: TraceSettings) -> Iterator[IncidentCommand | None]:
    """What --on-incident asks for; None where it asks for nothing.

    Enter it before threads are started and files are opened: it forks. At its end a command that runs is ended.
    """
    if not settings.on_incident or not settings.record:
        yield None
        return
    with CommandRunner(settings.on_incident, _user(settings.owner), WALL_S) as runner:
        yield IncidentCommand(runner, node=settings.node, recording=str(settings.db))


def start_saying(command: IncidentCommand, settings: TraceSettings) -> None:
    """Starts it, and says on standard error who runs what.

    Raises:
        CommandError: it cannot be run.
    """
    program = command.start()
    uid = _user(settings.owner).uid if os.geteuid() == 0 else os.getuid()
    more = " ..." if len(settings.on_incident) > 1 else ""  # what may hold a secret is not shown
    echo(f"on each incident, user {uid} runs: {shell_word(program)}{more}", err=True)


def _user(owner: Owner) -> User:
    """Whoever called sudo; root itself becomes nobody."""
    return User(uid=owner.uid, gid=owner.gid, home=str(owner.home)) if owner.uid else NOBODY
