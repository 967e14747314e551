"""One recording of `ingero trace`, from its settings to its end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from ingero.attach.kernel_side import KernelSide
from ingero.attach.libbpf import libbpf_version
from ingero.capture.loop.descriptors import raise_descriptor_limit
from ingero.capture.loop.heap import return_large_blocks
from ingero.capture.loop.live_findings import LiveFindings
from ingero.capture.loop.null_sink import NullSink
from ingero.capture.loop.priority import preferred
from ingero.capture.loop.recorder import Recorder
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.loop.session import session_facts
from ingero.capture.loop.single_agent import only_agent
from ingero.capture.records.rows import Sink
from ingero.cli.config.settings import TraceSettings
from ingero.cli.metrics_outputs import open_outputs
from ingero.cli.output import EXIT_CLOSED_PIPE, Output, echo
from ingero.cli.service.manager import RecordingState, ServiceManager
from ingero.cli.trace import plan
from ingero.cli.trace.incident_command import IncidentCommand
from ingero.cli.trace.view import open_view
from ingero.diagnose.incidents.incident_changes import Change
from ingero.discover.kernel import read_kernel
from ingero.errors import IngeroError
from ingero.program import command
from ingero.sandbox.nursery import Nursery
from ingero.store.errors import StoreError
from ingero.store.writing.recording import finish_killed
from ingero.store.writing.writer import Writer

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def record(
    settings: TraceSettings,
    nursery: Nursery,
    reread: Callable[[], TraceSettings],
    on_second: Sequence[Callable[[SecondOfCounts], None]] = (),
    on_incident: IncidentCommand | None = None,
) -> bool:
    """Records until it is stopped; returns whether to restart, because the settings in ingero.yaml have changed.

    nursery: forks the processes that read foreign files. reread: returns the present settings after a SIGHUP of a
    service manager; raises IngeroError. on_second: called once each second has been stored. on_incident: runs the
    command of --on-incident.
    """
    manager = ServiceManager(os.environ)
    plan.refuse_if_blocked(read_kernel(), sys.argv)
    libbpf_version()  # raises where it is missing, before anything is loaded for it
    for notice in plan.notices(settings):
        echo(notice, err=True)
    options = plan.recorder_options(settings)
    database = settings.db if settings.record else None
    raise_descriptor_limit()
    return_large_blocks()
    with (
        preferred(),
        Output() as output,
        only_agent(database, os.environ) as agent,
        _finish_killed(agent.left, settings),
        open_outputs(settings) as metrics,
        KernelSide(
            plan.kernel_sizes(settings),
            record_all=settings.record_all,
            sampling_rate=settings.sampling_rate,
            host_programs=plan.host_programs(settings),
            with_stacks=settings.stack,
            py_walker=settings.py_walker,
        ) as kernel,
        _sink(settings, kernel) as sink,
        Recorder(kernel, sink, options, nursery) as recorder,
        _signals(takes_reloads=manager.is_there) as received,
        nullcontext(RecordingState(manager, sink if isinstance(sink, Writer) else None, str(settings.db))) as state,
        open_view(
            output.line,
            as_json=settings.json,
            verbose=settings.verbose,
            database=database,
            is_service=manager.is_there,
        ) as view,
        _live_findings(
            sink,
            [view.finding, state.finding, *metrics.on_finding, *([on_incident.finding] if on_incident else [])],
        ) as findings,
    ):
        if on_incident:
            recorder.seconds.more_drops.append(on_incident.drops)
        _say_what_was_set_aside(sink)
        recorder.start()
        view.started(recorder, kernel)
        reload = _Reload(received, settings, reread, manager)
        has_ended = _stop_condition(received, settings, recorder)
        stored = [lambda second: findings.second_stored(second.in_flight + second.halted)] if findings else []
        on_each = _for_all(
            [*stored, *metrics.on_second, *on_second, view.second, lambda second: state.second(second.traced_processes)]
        )
        recorder.run(
            should_stop=lambda: output.is_closed or has_ended() or reload.is_wanted(),
            on_second=on_each,
            is_hurried=findings.is_hurried if findings else lambda: False,
            is_over=has_ended,
        )
        if not reload.is_due:
            manager.stopping()
        if findings:
            findings.close()
        if on_incident:
            on_incident.finish()
            recorder.count_late_drops()
        try:
            if isinstance(sink, Writer):
                sink.flush()
        finally:
            view.finished(recorder, database)
    if output.is_closed:
        sys.exit(EXIT_CLOSED_PIPE)
    return reload.is_due


def _sink(settings: TraceSettings, kernel: KernelSide) -> AbstractContextManager[Sink]:
    if not settings.record:
        return nullcontext(NullSink(settings.node))
    facts = session_facts(
        settings.pid, options=settings.as_texts(), not_traced=plan.not_traced(settings, kernel.walker)
    )
    owner = (settings.owner.uid, settings.owner.gid) if os.geteuid() == 0 else None
    return Writer(
        settings.db,
        session=facts,
        node=settings.node,
        max_db_bytes=settings.max_db,
        owner=owner,
        sets_aside=True,
    )


def _say_what_was_set_aside(sink: Sink) -> None:
    """Prints where the recording of an earlier build was moved to, if there was one."""
    if isinstance(sink, Writer) and (kept := sink.set_aside):
        echo(
            f"{sink.path} was recorded by an earlier build of ingero: it is kept as {kept.name}, and a new recording "
            f"begins; `{command('explain', '--db', kept)}` reads it",
            err=True,
        )


@contextmanager
def _finish_killed(left: str, settings: TraceSettings) -> Iterator[None]:
    """Finishes the recording of an agent that was killed, unless this agent continues it. left: its path, or empty."""
    if left and (not settings.record or Path(left).absolute() != settings.db.absolute()):
        try:
            if finish_killed(Path(left), {os.geteuid(), settings.owner.uid}):
                echo(f"{left}: its recorder was killed; it has been ended, and is whole", err=True)
        except StoreError as error:
            echo(f"{left}: its recorder was killed, and it cannot be ended: {error}", err=True)
    yield


def _live_findings(
    sink: Sink, consumers: Sequence[Callable[[Change], None]]
) -> AbstractContextManager[LiveFindings | None]:
    """Finds incidents in the database while it is written; None where there is no database."""
    return LiveFindings(sink, _for_all(consumers)) if isinstance(sink, Writer) else nullcontext()


def _for_all(consumers: Sequence[Callable[[_T], None]]) -> Callable[[_T], None]:
    def call_all(item: _T) -> None:
        for consume in consumers:
            consume(item)

    return call_all


@dataclass(slots=True)
class _ReceivedSignals:
    """Signals received so far. stop: end the recording. reload: reread ingero.yaml."""

    stop: bool = False
    reload: bool = False


@contextmanager
def _signals(*, takes_reloads: bool) -> Iterator[_ReceivedSignals]:
    """Lets SIGINT, SIGTERM and SIGHUP end the recording cleanly; a second signal ends it at once.

    takes_reloads: SIGHUP comes from a service manager and asks to reread the configuration. It stays handled after the
    block, where it would otherwise kill a process that is about to restart and reread the configuration anyway.
    """
    received = _ReceivedSignals()

    def note(number: int, _frame: FrameType | None) -> None:
        if takes_reloads and number == signal.SIGHUP:
            received.reload = True
            return
        received.stop = True
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # `restart` has blocked it
    try:
        yield received
    finally:
        for number, handler in before.items():
            if not (takes_reloads and number == signal.SIGHUP):
                signal.signal(number, handler)


class _Reload:
    """Rereads ingero.yaml on request. A file that cannot be used is reported, and the recording goes on.

    is_due: the settings have changed: this recording ends, and another one starts.
    """

    def __init__(
        self,
        received: _ReceivedSignals,
        settings: TraceSettings,
        reread: Callable[[], TraceSettings],
        manager: ServiceManager,
    ) -> None:
        self.is_due = False
        self._received, self._settings, self._reread, self._manager = received, settings, reread, manager

    def is_wanted(self) -> bool:
        """Whether the recording has to end because the settings have changed."""
        if self._received.reload and not self.is_due:
            self._received.reload = False
            self._manager.reloading()
            self.is_due = self._is_other()
        return self.is_due

    def _is_other(self) -> bool:
        try:
            is_other = self._reread() != self._settings
        except IngeroError as error:
            logger.warning("the settings stay as they were: %s; hint: %s", error, error.hint)
            self._manager.ready(f"the settings stay as they were: {error}")
            return False
        if not is_other:
            self._manager.ready("the settings have not changed")
        return is_other


def restart() -> NoReturn:
    """Executes this process's command again. A SIGHUP in between is not lost.

    The signal mask survives execv: SIGHUP stays pending until the new program handles it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _stop_condition(received: _ReceivedSignals, settings: TraceSettings, recorder: Recorder) -> Callable[[], bool]:
    end = time.monotonic() + settings.duration if settings.duration is not None else None

    def should_stop() -> bool:
        if received.stop or (end is not None and time.monotonic() >= end):
            return True
        return bool(settings.pid) and len(recorder.traced_processes) == 0

    return should_stop
