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
from ingero.capture.loop.recorder import Recorder
from ingero.capture.loop.second import Second
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
    on_second: Sequence[Callable[[Second], None]] = (),
    on_incident: IncidentCommand | None = None,
) -> bool:
    """Records until it is told to stop; says whether it is to start over, because ingero.yaml says something else.

    nursery: where the processes come from that read foreign files. reread: the settings as they would be now, which
    a service manager may ask for by SIGHUP; it raises IngeroError. on_second: called once each second has been stored.
    on_incident: what is run as incidents open and close.
    """
    manager = ServiceManager(os.environ)
    plan.refuse_if_blocked(read_kernel(), sys.argv)
    libbpf_version()  # that it is not there is said before anything is loaded for it
    for notice in plan.notices(settings):
        echo(notice, err=True)
    options = plan.recorder_options(settings)
    database = settings.db if settings.record else None
    raise_descriptor_limit()
    return_large_blocks()
    with (
        Output() as output,
        only_agent(database, os.environ) as agent,
        _killed_before(agent.left, settings),
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
        _signals(takes_reloads=manager.is_there) as seen,
        nullcontext(RecordingState(manager, sink if isinstance(sink, Writer) else None, str(settings.db))) as state,
        open_view(
            output.line,
            as_json=settings.json,
            verbose=settings.verbose,
            database=database,
            is_service=manager.is_there,
        ) as view,
        _findings(
            sink,
            [view.finding, state.finding, *metrics.on_finding, *([on_incident.finding] if on_incident else [])],
        ) as findings,
    ):
        if on_incident:
            recorder.seconds.more_drops.append(on_incident.drops)
        _say_what_was_set_aside(sink)
        recorder.start()
        view.started(recorder, kernel)
        reload = _Reload(seen, settings, reread, manager)
        has_ended = _stop(seen, settings, recorder)
        stored = [lambda second: findings.second_stored(second.in_flight + second.halted)] if findings else []
        on_each = _each(
            [*stored, *metrics.on_second, *on_second, view.second, lambda second: state.second(second.targets)]
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
    """The recording of an earlier build is somewhere else now, and is read there."""
    if isinstance(sink, Writer) and (kept := sink.set_aside):
        echo(
            f"{sink.path} was recorded by an earlier build of ingero: it is kept as {kept.name}, and a new recording "
            f"begins; `{command('explain', '--db', kept)}` reads it",
            err=True,
        )


@contextmanager
def _killed_before(left: str, settings: TraceSettings) -> Iterator[None]:
    """The recording of the agent before, which was killed, becomes a whole file, unless this one goes on with it."""
    if left and (not settings.record or Path(left).absolute() != settings.db.absolute()):
        try:
            if finish_killed(Path(left), {os.geteuid(), settings.owner.uid}):
                echo(f"{left}: its recorder was killed; it has been ended, and is whole", err=True)
        except StoreError as error:
            echo(f"{left}: its recorder was killed, and it cannot be ended: {error}", err=True)
    yield


def _findings(sink: Sink, told: Sequence[Callable[[Change], None]]) -> AbstractContextManager[LiveFindings | None]:
    """Findings are read from the database: without one there are none."""
    return LiveFindings(sink, _each(told)) if isinstance(sink, Writer) else nullcontext()


def _each(consumers: Sequence[Callable[[_T], None]]) -> Callable[[_T], None]:
    def give(one: _T) -> None:
        for consume in consumers:
            consume(one)

    return give


@dataclass(slots=True)
class _Seen:
    """Signals that have come. stop: to end the recording. reload: to reread ingero.yaml."""

    stop: bool = False
    reload: bool = False


@contextmanager
def _signals(*, takes_reloads: bool) -> Iterator[_Seen]:
    """SIGINT, SIGTERM and SIGHUP end the recording in good order; a second one ends it at once.

    takes_reloads: SIGHUP comes from a service manager, and asks for the configuration to be reread. It is then taken
    beyond the block, too, where it would end the process that is about to start over and to read that anyway.
    """
    seen = _Seen()

    def note(number: int, _frame: FrameType | None) -> None:
        if takes_reloads and number == signal.SIGHUP:
            seen.reload = True
            return
        seen.stop = True
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # that of who began anew, see `begin_anew`
    try:
        yield seen
    finally:
        for number, handler in before.items():
            if not (takes_reloads and number == signal.SIGHUP):
                signal.signal(number, handler)


class _Reload:
    """Rereads ingero.yaml when it is asked to. What cannot be used is said, and what is recorded goes on.

    is_due: the settings are others: this recording ends, and another one begins.
    """

    def __init__(
        self, seen: _Seen, settings: TraceSettings, reread: Callable[[], TraceSettings], manager: ServiceManager
    ) -> None:
        self.is_due = False
        self._seen, self._settings, self._reread, self._manager = seen, settings, reread, manager

    def is_wanted(self) -> bool:
        """Whether the recording is to end for it."""
        if self._seen.reload and not self.is_due:
            self._seen.reload = False
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


def begin_anew() -> NoReturn:
    """Has this process be the command that it was started as. A signal to reload that comes meanwhile is not lost.

    The mask of this thread outlives the program: until its successor takes signals, they wait.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _stop(seen: _Seen, settings: TraceSettings, recorder: Recorder) -> Callable[[], bool]:
    end = time.monotonic() + settings.duration if settings.duration is not None else None

    def should_stop() -> bool:
        if seen.stop or (end is not None and time.monotonic() >= end):
            return True
        return bool(settings.pid) and len(recorder.targets) == 0

    return should_stop
