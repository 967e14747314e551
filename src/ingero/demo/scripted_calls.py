"""Calls of a script: exact sums, recorded calls, calls in flight, communicators and collectives."""

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
    """Writes calls."""

    def op(self, actor: Actor, name: str, at_s: float, count: int, ms: float, **columns: Value) -> None:
        """`count` calls of one operation in the second at_s, `ms` each, on a CPU unless columns say more."""
        if count:
            lengths = np.full(count, ns_of(ms), np.int64)
            states: dict[str, Value] = {"run_ns": count * ns_of(ms)} | _NO_CLOCKS
            self._sums(actor, BY_NAME[name], at_s, lengths, states | columns)

    def _sums(self, actor: Actor, op: Op, at_s: float, lengths: Array, columns: Mapping[str, Value]) -> None:
        """What a second says of calls with these lengths, ns."""
        counts: dict[str, Value] = {"count": len(lengths), "sum_ns": int(lengths.sum()), "max_ns": int(lengths.max())}
        place: dict[str, Value] = {"process": actor.number, "source": int(op.source), "op": op.code}
        place["start_ns"] = self.at(at_s)
        self.append(tables.OP_STATS, **(counts | place | dict(columns)))
        histogram: dict[str, Value] = {"period_s": 1, "histogram": histograms.pack(histograms.count(lengths))}
        self.append(tables.CALL_SITES, **(counts | place | histogram))

    def call(self, actor: Actor, name: str, at_s: float, ms: float, **columns: Value) -> None:
        """One recorded call."""
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
        """A call that is seen open each second from its begin until until_s. awake: of that time, its thread."""
        op = BY_NAME[name]
        for second in range(int(since_s) + 1, int(until_s) + 1):
            known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": actor.pid}
            known["awake_ns"] = int(awake * (second - int(since_s) - 1) * SECOND_NS)
            known |= {"source": int(op.source), "op": op.code, "since_ns": self.at(since_s), "stack_hash": stack}
            self.append(tables.IN_FLIGHT, time_ns=self.at(second), **known)

    def communicator(
        self, actor: Actor, *, rank: int, ranks: int, comm_id_hash: int = 77, collectives: int = 0
    ) -> None:
        """One that all ranks have made with the same id."""
        known: dict[str, Value] = {"process": actor.number, "number": 1, "handle": 0xC0, "created_ns": BEGIN_NS}
        known |= {"comm_id_hash": comm_id_hash, "rank": rank, "nranks": ranks, "origin": "ncclCommInitRank"}
        known["collectives"] = collectives
        self.append(tables.COMMUNICATORS, **known)

    def collective(
        self, actor: Actor, name: str, at_s: float, sequence: int, size_bytes: int, *, datatype: int = 7, stack: int = 0
    ) -> None:
        """One recorded collective on its communicator; datatype: ncclDataType_t (7: float32)."""
        place = 1 << 40 | sequence
        self.call(actor, name, at_s, 0.02, arg0=size_bytes, arg1=0xC0, arg2=datatype, function=place, stack_hash=stack)
