"""Writes calls for a script: exact sums, recorded calls, in-flight calls, communicators and collectives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingero.demo.scripted_recording import ScriptedRecording
from ingero.demo.scripted_steps import BEGIN_NS, Actor, Array, ns_of
from ingero.events import STATES
from ingero.ops import OPS, Op
from ingero.store import histograms
from ingero.store.writing import tables
from ingero.store.writing.tables import Value
from ingero.units import SECOND_NS

BY_NAME: Mapping[str, Op] = {op.name: op for op in OPS}
_NO_CLOCKS: dict[str, Value] = {f"{name}_ns": 0 for name in STATES if name != "run"}


class ScriptedCalls(ScriptedRecording):
    """The part of a scripted run that writes calls."""

    def op(self, actor: Actor, name: str, at_s: float, count: int, ms: float, **columns: Value) -> None:
        """Writes `count` calls of an operation in the second at_s, `ms` each, on a CPU unless columns say otherwise."""
        if count:
            lengths = np.full(count, ns_of(ms), np.int64)
            states: dict[str, Value] = {"run_ns": count * ns_of(ms)} | _NO_CLOCKS
            self._sums(actor, BY_NAME[name], at_s, lengths, states | columns)

    def _sums(self, actor: Actor, op: Op, at_s: float, lengths: Array, columns: Mapping[str, Value]) -> None:
        """Writes the sums of one second for calls with these lengths (ns)."""
        counts: dict[str, Value] = {"count": len(lengths), "sum_ns": int(lengths.sum()), "max_ns": int(lengths.max())}
        place: dict[str, Value] = {"process": actor.number, "source": int(op.source), "op": op.code}
        place["start_ns"] = self.at(at_s)
        self.append(tables.OP_STATS, **(counts | place | dict(columns)))
        histogram: dict[str, Value] = {"period_s": 1, "histogram": histograms.pack(histograms.count(lengths))}
        self.append(tables.CALL_SITES, **(counts | place | histogram))

    def call(self, actor: Actor, name: str, at_s: float, ms: float, **columns: Value) -> None:
        """Writes one recorded call."""
        op = BY_NAME[name]
        known: dict[str, Value] = {
            "process": actor.number,
            "pid": actor.pid,
            "tid": actor.pid,
            "comm": self.text(actor.name),
        }
        known |= {"source": int(op.source), "op": op.code, "start_ns": self.at(at_s), "duration_ns": ns_of(ms)}
        self.append(tables.EVENTS, **(known | columns))

    def open_call(
        self, actor: Actor, name: str, since_s: float, until_s: float, *, stack: int = 0, awake: float = 0.0
    ) -> None:
        """Writes a call as in flight in each second from since_s to until_s. awake: ratio of that time awake."""
        op = BY_NAME[name]
        for second in range(int(since_s) + 1, int(until_s) + 1):
            known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": actor.pid}
            known["awake_ns"] = int(awake * (second - int(since_s) - 1) * SECOND_NS)
            known |= {"source": int(op.source), "op": op.code, "since_ns": self.at(since_s), "stack_hash": stack}
            self.append(tables.IN_FLIGHT, time_ns=self.at(second), **known)

    def communicator(
        self,
        actor: Actor,
        *,
        rank: int,
        ranks: int,
        comm_id_hash: int = 77,
        collectives: int = 0,
        number: int = 1,
        **last: Value,
    ) -> None:
        """Writes a communicator that all ranks have made with the same id. last: columns of its latest collective."""
        known: dict[str, Value] = {"process": actor.number, "number": number, "handle": 0xC0 + number - 1}
        known |= {"created_ns": BEGIN_NS} | last
        known |= {"comm_id_hash": comm_id_hash, "rank": rank, "nranks": ranks, "origin": "ncclCommInitRank"}
        known["collectives"] = collectives
        self.append(tables.COMMUNICATORS, **known)

    def collective(
        self, actor: Actor, name: str, at_s: float, sequence: int, size_bytes: int, *, datatype: int = 7, stack: int = 0
    ) -> None:
        """Writes one recorded collective on the process's communicator; datatype: ncclDataType_t (7: float32)."""
        place = 1 << 40 | sequence
        self.call(actor, name, at_s, 0.02, arg0=size_bytes, arg1=0xC0, arg2=datatype, function=place, stack_hash=stack)
