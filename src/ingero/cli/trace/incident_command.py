"""`trace --on-incident`: runs a command as incidents open and close, in an unprivileged process."""

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
from ingero.sandbox.command_runner import NOBODY, CommandResult, CommandRunner, User
from ingero.store.opening.locations import Owner

WALL_S = 10.0  # of one run
MAX_WAITING = 16
_END_S = 10.0  # at the end of a recording, for runs in the queue; nobody who stops it waits longer

_QUEUE_FULL, _NOT_RUN = "incident_commands_queue_full", "incident_commands_not_run"
_FAILED, _TIMED_OUT = "incident_commands_failed", "incident_commands_timed_out"

_log = logging.getLogger(__name__)


class IncidentCommand:
    """Runs the command once at a time; up to MAX_WAITING runs wait in a queue, and further ones are counted.

    `finding` and `drops` never wait. node, recording: passed to the command with each incident.
    """

    def __init__(self, runner: CommandRunner, *, node: str, recording: str) -> None:
        self._runner, self._node, self._recording = runner, node, recording
        self._queue: queue.Queue[Change | None] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._is_over = False
        self._thread = threading.Thread(target=self._run_all, name="ingero-command", daemon=True)
        self._has_started = False

    def start(self) -> str:
        """Waits until the command can be run; returns the path of its program.

        Raises:
            CommandError: it cannot be run.
        """
        program = self._runner.start()
        self._thread.start()
        self._has_started = True
        return program

    def finding(self, change: Change) -> None:
        """Queues a run of the command if an incident opened or closed."""
        if change.kind is ChangeKind.UPDATED or self._is_over:
            return
        try:
            self._queue.put_nowait(change)
        except queue.Full:
            self._count(_QUEUE_FULL)

    def drops(self) -> dict[str, int]:
        """Runs that were skipped or failed since the last call, by counter."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def finish(self) -> None:
        """Waits for the queued runs, 10 s at most; counts those that are left. Nothing is run after it."""
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
            except Exception:  # a bug here must not end the runs of weeks
                _log.exception("--on-incident: a run was skipped")
                self._count(_NOT_RUN)
            finally:
                self._queue.task_done()

    def _note(self, change: Change, ended: CommandResult) -> None:
        if self._is_over or ended.exit_code == 0:  # `finish` has counted it
            return
        if ended.is_timed_out:
            counter, outcome = _TIMED_OUT, f"killed after {WALL_S:.0f} s"
        elif ended.exit_code is None:
            counter, outcome = _NOT_RUN, ended.error
        else:
            counter = _FAILED
            outcome = f"signal {-ended.exit_code}" if ended.exit_code < 0 else f"exit code {ended.exit_code}"
        self._count(counter)
        lines = ended.output.strip().splitlines()
        printed = f"; it printed: {visible(lines[-1][:300])}" if lines else ""
        what = f"incident {change.incident.number} {change.kind.value}"
        _log.warning("--on-incident: %s: %s%s", what, outcome, printed)

    def _count(self, counter: str, count: int = 1) -> None:
        with self._lock:
            self._counts[counter] += count


@contextmanager
def open_incident_command(settings: TraceSettings) -> Iterator[IncidentCommand | None]:
    """The command of --on-incident; None where the option is not given.

    Enter it before threads are started and files are opened, because it forks. Leaving it ends a running command.
    """
    if not settings.on_incident or not settings.record:
        yield None
        return
    with CommandRunner(settings.on_incident, _user(settings.owner), WALL_S) as runner:
        yield IncidentCommand(runner, node=settings.node, recording=str(settings.db))


def start_and_announce(command: IncidentCommand, settings: TraceSettings) -> None:
    """Starts the command's process, and prints on standard error which user runs which program.

    Raises:
        CommandError: it cannot be run.
    """
    program = command.start()
    uid = _user(settings.owner).uid if os.geteuid() == 0 else os.getuid()
    more = " ..." if len(settings.on_incident) > 1 else ""  # what may hold a secret is not shown
    echo(f"on each incident, user {uid} runs: {shell_word(program)}{more}", err=True)


def _user(owner: Owner) -> User:
    """The user that called sudo; root itself becomes `nobody`."""
    return User(uid=owner.uid, gid=owner.gid, home=str(owner.home)) if owner.uid else NOBODY
