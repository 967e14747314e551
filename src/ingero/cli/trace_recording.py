"""One recording of `ingero trace`, from its settings to its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TypeVar

from ingero.attach.kernel_side import KernelSide
from ingero.capture.descriptors import raise_descriptor_limit
from ingero.capture.heap import return_large_blocks
from ingero.capture.live_findings import LiveFindings
from ingero.capture.null_sink import NullSink
from ingero.capture.recorder import Recorder
from ingero.capture.rows import Sink
from ingero.capture.session import session_facts
from ingero.capture.single_agent import only_agent
from ingero.cli import plan
from ingero.cli.metrics_outputs import open_outputs
from ingero.cli.output import EXIT_CLOSED_PIPE, Output, echo
from ingero.cli.settings import TraceSettings
from ingero.cli.trace_view import open_view
from ingero.diagnose.changes import Change
from ingero.discover.kernel import read_kernel
from ingero.sandbox.nursery import Nursery
from ingero.store.errors import StoreError
from ingero.store.recording import finish_killed
from ingero.store.writer import Writer

_T = TypeVar("_T")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def record(settings: TraceSettings, nursery: Nursery) -> None:
    """Records until it is told to stop. nursery: where the processes come from that read foreign files."""
    plan.refuse_if_blocked(read_kernel(), sys.argv)
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
        _stop_signals() as was_stopped,
        open_view(output.line, as_json=settings.json, verbose=settings.verbose, database=database) as view,
        _findings(sink, [view.finding, *metrics.on_finding]) as findings,
    ):
        recorder.start()
        view.started(recorder, kernel)
        has_ended = _stop(was_stopped, settings, recorder)
        stored = [lambda second: findings.second_stored(second.in_flight + second.halted)] if findings else []
        on_second = _each([*stored, *metrics.on_second, view.second])
        recorder.run(
            should_stop=lambda: output.is_closed or has_ended(),
            on_second=on_second,
            is_hurried=findings.is_hurried if findings else lambda: False,
        )
        if findings:
            findings.close()
        try:
            if isinstance(sink, Writer):
                sink.flush()
        finally:
            view.finished(recorder, database)
    if output.is_closed:
        sys.exit(EXIT_CLOSED_PIPE)


def _sink(settings: TraceSettings, kernel: KernelSide) -> AbstractContextManager[Sink]:
    if not settings.record:
        return nullcontext(NullSink(settings.node))
    facts = session_facts(
        settings.pid, options=settings.as_texts(), not_traced=plan.not_traced(settings, kernel.walker)
    )
    owner = (settings.owner.uid, settings.owner.gid) if os.geteuid() == 0 else None
    return Writer(settings.db, session=facts, node=settings.node, max_db_bytes=settings.max_db, owner=owner)


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


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT, SIGTERM and SIGHUP end the recording in good order; a second one ends it at once."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(was_stopped: Callable[[], bool], settings: TraceSettings, recorder: Recorder) -> Callable[[], bool]:
    end = time.monotonic() + settings.duration if settings.duration is not None else None

    def should_stop() -> bool:
        if was_stopped() or (end is not None and time.monotonic() >= end):
            return True
        return bool(settings.pid) and len(recorder.targets) == 0

    return should_stop
