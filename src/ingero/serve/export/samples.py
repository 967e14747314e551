"""Recorded calls summed by stack, for flame graphs and profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingero.store.call_stacks import NativePlace, PythonPlace, call_stack
from ingero.store.records import Process
from ingero.store.streaming.names import Names
from ingero.store.streaming.streams import Streams

Place = PythonPlace | NativePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The recorded calls of one operation with one stack. places: innermost first, () if no stack was stored.

    process: None if it was not traced. offcpu_ns: the part of time_ns in any state but running; None if not recorded.
    """

    process: Process | None
    pid: int
    op: str
    places: tuple[Place, ...]
    calls: int
    time_ns: int
    offcpu_ns: int | None


def samples(streams: Streams) -> Iterator[Sample]:
    """The recorded calls of the window, by process, operation and stack."""
    names = Names(streams.reader)
    processes = {process.process: process for process in streams.reader.processes(only_traced=False)}
    for row in streams.stack_weights():
        yield Sample(
            process=processes.get(row.process),
            pid=row.pid,
            op=names.ops.get((row.source, row.op)) or f"{row.source}/{row.op}",
            places=_places(names, row.stack_hash),
            calls=row.calls,
            time_ns=row.time_ns,
            offcpu_ns=row.offcpu_ns,
        )


def _places(names: Names, stack_hash: int) -> tuple[Place, ...]:
    """The places of a stack: native functions up to the interpreter, then Python functions."""
    stored = names.stack(stack_hash)
    if stored is None:
        return ()
    stack = call_stack(stored)
    return (*stack.native, *stack.python)
