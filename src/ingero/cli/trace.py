"""`ingero trace`: record until the duration has passed, the targets have ended, or Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import rich_click as click

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.null_sink import NullSink
from ingero.capture.recorder import Recorder, RecorderOptions
from ingero.capture.rows import Sink
from ingero.capture.session import session_facts
from ingero.cli.trace_view import open_view
from ingero.errors import IngeroError
from ingero.store.locations import database_path, invoking_user
from ingero.store.writer import Writer
from ingero.units import parse_duration_s


class NotRootError(IngeroError):
    """Tracing needs privileges that this process does not have."""

    def __init__(self) -> None:
        super().__init__("tracing needs root", hint=f"sudo {' '.join(sys.argv)}")


def _pids(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    if not value:
        return ()
    try:
        pids = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of process ids like 1234,5678") from None
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            raise click.BadParameter(f"no process {pid} is running")
    return pids


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    return parse_duration_s(value) if value else None


@click.command("trace")
@click.option("--pid", "pids", callback=_pids, metavar="A,B", help="Trace these processes and their children only.")
@click.option("--db", type=click.Path(path_type=Path, dir_okay=False), help="Database (default ~/.ingero/ingero.db).")
@click.option("--duration", callback=_seconds, metavar="D", help="Stop after this time: 90s, 5m, 1h30m.")
@click.option(
    "--record", type=bool, is_flag=False, flag_value="true", default=True, help="--record=false only watches."
)
@click.option("--record-all", is_flag=True, help="Store every call instead of rare, slow and sampled ones.")
@click.option(
    "--launches-at",
    type=click.Choice(["driver", "both"]),
    default="both",
    help="Probe launches in the driver only: cheaper, and the caller of a launch is then the CUDA runtime.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per second on standard output.")
def command(
    pids: tuple[int, ...],
    db: Path | None,
    duration: float | None,
    record: bool,
    record_all: bool,
    launches_at: str,
    as_json: bool,
) -> None:
    """Record what GPU processes do, and show it while it happens."""
    if os.geteuid() != 0:
        raise NotRootError
    path = database_path(db, os.environ, uid=os.getuid())
    options = RecorderOptions(pids=pids, launches_at_driver_only=launches_at == "driver")
    with (
        KernelSide(KernelSizes(), record_all=record_all) as kernel,
        _sink(path if record else None, pids) as sink,
        Recorder(kernel, sink, options) as recorder,
        _stop_signals() as was_stopped,
        open_view(as_json=as_json, database=path if record else None) as view,
    ):
        recorder.start()
        view.started(recorder, kernel)
        recorder.run(should_stop=_stop(was_stopped, duration, recorder, pids), on_second=view.second)
        if isinstance(sink, Writer):
            sink.flush()
        view.finished(recorder, path if record else None)


def _sink(path: Path | None, pids: tuple[int, ...]) -> AbstractContextManager[Sink]:
    if path is None:
        return nullcontext(NullSink(os.uname().nodename))
    user = invoking_user(os.environ, uid=os.getuid())
    return Writer(path, session=session_facts(pids), node=os.uname().nodename, owner=(user.uid, user.gid))


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM end the recording in good order; a second one ends it at once."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(
    was_stopped: Callable[[], bool], duration: float | None, recorder: Recorder, pids: tuple[int, ...]
) -> Callable[[], bool]:
    end = time.monotonic() + duration if duration is not None else None

    def should_stop() -> bool:
        if was_stopped() or (end is not None and time.monotonic() >= end):
            return True
        return bool(pids) and len(recorder.targets) == 0

    return should_stop
