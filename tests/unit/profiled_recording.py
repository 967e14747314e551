"""Scripted recordings like those of an import. Times are ms since the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis
from ingero.diagnose.profile.report import Profiles
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window
from ingero.store.writing import tables

_SECONDS = 10.0
WINDOW = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + int(_SECONDS * 1e9))


def ns(ms: float) -> int:
    """Unix ns of a moment."""
    return BEGIN_NS + round(ms * 1e6)


@dataclass
class Program:
    """Writes one profiled process."""

    run: ScriptedRun
    actor: Actor
    gpu: int = 0

    def launch(
        self,
        at: float,
        *,
        runs: tuple[float, float],
        took: float = 0.005,
        kernel: str = "gemm",
        stream: int = 7,
        tid: int = 0,
        stack: Sequence[tuple[str, int, str]] = (),
        communicator: int = 0,
    ) -> None:
        """A launch, and its kernel from one moment to another."""
        self.call("cudaLaunchKernel", at, took, tid=tid, stack=stack)
        function = crc32(kernel.encode()) + 1
        self.run.append(
            tables.KERNELS, process=self.actor.number, function=function, name=f"{kernel}(int)", short_name=kernel
        )
        self._activity("kernel", at, runs, stream, function=function, communicator=communicator)

    def communicator(self, number: int, comm_id_hash: int) -> None:
        """A communicator that it is a rank of; the hash is equal on all ranks."""
        known = {"comm_id_hash": comm_id_hash, "created_ns": BEGIN_NS}
        self.run.append(tables.COMMUNICATORS, process=self.actor.number, number=number, **known)

    def copy(
        self, at: float, *, took: float, runs: tuple[float, float], direction: str, size: int, stream: int = 7
    ) -> None:
        """A pageable asynchronous copy."""
        self.call("cudaMemcpyAsync", at, took)
        kind = {"direction": self.run.text(direction), "host_memory": self.run.text("pageable"), "bytes": size}
        self._activity("memcpy", at, runs, stream, **kind)

    def _activity(self, kind: str, call: float, runs: tuple[float, float], stream: int, **columns: int) -> None:
        self.run.append(
            tables.GPU_ACTIVITIES,
            process=self.actor.number,
            device=self.gpu,
            stream=stream,
            kind=self.run.text(kind),
            start_ns=ns(runs[0]),
            duration_ns=ns(runs[1]) - ns(runs[0]),
            call_ns=ns(call),
            **columns,
        )

    def sync_activity(self, runs: tuple[float, float]) -> None:
        """Writes the activity that a profiler records for a host wait."""
        self._activity("sync", 0, runs, 7)

    def call(
        self, name: str, at: float, took: float, *, tid: int = 0, stack: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        """A call that enqueues nothing."""
        known = {"tid": tid} if tid else {}
        known |= {"stack_hash": self.run.stack(stack)} if stack else {}
        self.run.call(self.actor, name, at / 1e3, took, **known, start_ns=ns(at))

    def range(self, kind: str, name: str, begin: float, end: float, *, tid: int = 0) -> None:
        """A marked range of a thread, of the main one if no other is said."""
        self.run.append(
            tables.USER_RANGES,
            process=self.actor.number,
            tid=tid or self.actor.pid,
            start_ns=ns(begin),
            duration_ns=ns(end) - ns(begin),
            kind=self.run.text(kind),
            name=self.run.text(name),
        )

    def step(self, begin: float, end: float, *, launches: int = 10, how: str = "repetition") -> None:
        """A step that was found."""
        self.run.append(
            tables.STEPS,
            process=self.actor.number,
            pid=self.actor.pid,
            tid=self.actor.pid,
            device=self.gpu,
            stream=7,
            start_ns=ns(begin),
            end_ns=ns(end),
            how=self.run.text(how),
            step_type=self.run.text(f"{launches} enqueues"),
            launches=launches,
        )


class Profiled:
    """An imported recording in the making."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run

    def program(self, pid: int = 700, *, rank: int | None = None, gpu: int = 0) -> Program:
        """A profiled process."""
        return Program(self._run, self._run.process(pid, "python", rank=rank), gpu)


@contextmanager
def imported(path: Path) -> Iterator[Profiled]:
    """A recording to fill; afterwards it lies at the path."""
    reason = "a profile shows calls and GPU work, not why a thread did not run"
    not_traced = dict.fromkeys(("offcpu", "culprits", "thread_state_seconds", "stack_samples"), reason)
    with ScriptedRun(path, seconds=_SECONDS, not_traced=not_traced) as run:
        yield Profiled(run)


def diagnosed(path: Path) -> Diagnosis:
    """The diagnosis of a recording."""
    with open_reader(path) as reader:
        return diagnose(reader, WINDOW)


def profiles_of(path: Path) -> Profiles:
    """The profile reports in the diagnosis of a recording."""
    with open_reader(path) as reader:
        return evidence(reader).profiles


def evidence(reader: Reader) -> Evidence:
    """The evidence of the whole recording."""
    return Evidence(reader, WINDOW)
