"""Turns batches of kernel records into rows of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingero.capture.loop.clocks import WallClock
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
from ingero.capture.records.peer_addresses import PeerAddresses
from ingero.decode.sync_intervals import GpuReadiness, StreamSyncs, op_ids, step_type, unseen_class_key
from ingero.events import HostKind, LifecycleKind
from ingero.foreign_text import decoded
from ingero.ops import BY_ID, OPS, HostOp, IoOp, Kind, NetOp, Source, TcpOp
from ingero.store.vocabulary import STATES, SyncIntervalFlag
from ingero.store.writing import tables
from ingero.store.writing.tables import Row, Rows, Table

Array = np.ndarray[Any, np.dtype[Any]]

CODE_OF_OP = np.zeros(256, np.int64)
SOURCE_OF_OP = np.zeros(256, np.int64)
MAY_WAIT = np.zeros(256, np.int64)  # for the GPU: the calls whose blocked time is counted (bpf/steps.h)
for _op in OPS:
    MAY_WAIT[_op.id] = bool(_op.kind & (Kind.SYNC | Kind.COPY | Kind.LAUNCH | Kind.ALLOC | Kind.FREE))
    CODE_OF_OP[_op.id], SOURCE_OF_OP[_op.id] = _op.code, _op.source

# kind of a host event -> published (source, op)
HOST_OPS: dict[int, tuple[Source, int]] = {
    HostKind.BLOCK_READ: (Source.IO, IoOp.READ),
    HostKind.BLOCK_WRITE: (Source.IO, IoOp.WRITE),
    HostKind.BLOCK_DISCARD: (Source.IO, IoOp.DISCARD),
    HostKind.BLOCK_FLUSH: (Source.IO, IoOp.FLUSH),
    HostKind.DIRECT_RECLAIM: (Source.HOST, HostOp.DIRECT_RECLAIM),
    HostKind.COMPACTION: (Source.HOST, HostOp.COMPACTION),
    HostKind.LATE_TIMER: (Source.HOST, HostOp.LATE_TIMER),
    HostKind.TCP_RETRANSMIT: (Source.TCP, TcpOp.RETRANSMIT),
    HostKind.NET_SEND: (Source.NET, NetOp.SEND),
    HostKind.NET_RECEIVE: (Source.NET, NetOp.RECEIVE),
}
_HOST_SOURCE = np.zeros(256, np.int64)
_HOST_CODE = np.zeros(256, np.int64)
for _kind, (_source, _code) in HOST_OPS.items():
    _HOST_SOURCE[_kind], _HOST_CODE[_kind] = _source, _code

# published operation of source HOST
LIFECYCLE_OPS: dict[int, HostOp] = {
    LifecycleKind.FORK: HostOp.PROCESS_FORK,
    LifecycleKind.EXEC: HostOp.PROCESS_EXEC,
    LifecycleKind.EXIT: HostOp.PROCESS_EXIT,
    LifecycleKind.OOM_KILL: HostOp.OOM_KILL,
    LifecycleKind.STOP_SIGNAL: HostOp.STOP_SIGNAL,
}


class Sink(Protocol):
    """Where rows go: the writer of the database, or nowhere."""

    @property
    def session(self) -> int:
        """Number of this recording."""

    @property
    def node(self) -> str:
        """Name of this machine in event ids."""

    def process_id(self, pid: int, start_ns: int) -> int:
        """The number of a process, stable across calls."""

    def drops(self) -> dict[tuple[str, str], int]:
        """Rows not taken so far, by (table, reason)."""

    def append(self, table: Table, rows: Sequence[Row]) -> int:
        """Takes rows; returns how many."""

    def intern(self, text: str) -> int:
        """The number that stands for a text."""

    def cgroup_keys(self, cgroup_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The kernel's cgroup ids as the database has them."""


class RowMaker:
    """Makes the rows of one recording.

    name_of_pid, name_of_thread: names by pid and tid, "" where unknown.
    cgroup_keys: the kernel's cgroup ids as the database has them. default_gpu: of calls without a known one.
    is_changed: in which of the time ranges (monotonic begins and ends) something else was traced than before or after,
    or too little. owners: pids of culprits, the agent's for its own processes.
    """

    def __init__(
        self,
        sink: Sink,
        clock: WallClock,
        traced_processes: TracedProcesses,
        *,
        name_of_pid: Callable[[int], str],
        name_of_thread: Callable[[int], str],
        cgroup_keys: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.int64]],
        default_gpu: int,
        is_changed: Callable[[Array, Array], Array] = lambda begin_ns, _end_ns: np.zeros(len(begin_ns), bool),
        owners: Callable[[Array], Array] = lambda pids: pids,
    ) -> None:
        self._sink, self._clock, self._traced_processes = sink, clock, traced_processes
        self._name_of_pid, self._name_of_thread, self._owners = name_of_pid, name_of_thread, owners
        self._cgroup_keys, self._default_device = cgroup_keys, default_gpu
        self._is_changed = is_changed
        self._lifecycle: Counter[HostOp] = Counter()
        self._peers = PeerAddresses(sink.intern)
        self._gpu_streams: dict[
            int, tuple[int, int, StreamSyncs]
        ] = {}  # by place: the process and stream that have it, the stream

    def calls(self, batch: Array, numbers: list[int], stack_hashes: Sequence[int]) -> None:
        """Recorded calls (`struct call_record`), the numbers of their processes, the hashes of their stacks."""
        count = len(batch)
        slots, clocks = batch["process_slot"], batch["state_ns"]
        libraries = self._caller_libraries(slots, batch["caller"])
        waker_names = self._names(np.where(batch["waker_kind"] <= 2, batch["waker_tid"], 0), self._name_of_thread)
        rows = tables.EVENTS.rows(
            count,
            session=self._sink.session,
            start_ns=self._clock.unix_ns(batch["start_ns"]),
            duration_ns=batch["duration_ns"],
            process=numbers,
            pid=batch["pid"],
            tid=batch["tid"],
            source=SOURCE_OF_OP[batch["op"]],
            op=CODE_OF_OP[batch["op"]],
            arg0=batch["size_bytes"],
            arg1=batch["handle"],
            arg2=batch["extra"],
            stream=batch["stream"],
            ret_code=batch["ret"],
            gpu_id=self.gpus(batch["device"]),
            caller=batch["caller"],
            caller_library=libraries,
            function=batch["function"],
            cgroup_id=self._cgroup_keys(batch["cgroup_id"]),
            comm=self._texts(batch["comm"]),
            cpu=batch["cpu"],
            residual_ns=batch["residual_ns"],
            involuntary_switches=batch["preemptions"],
            switches=batch["switches"],
            culprit_pid=self._owners(batch["culprit_pid"]),
            culprit_name=self._names(batch["culprit_pid"], self._name_of_pid),
            culprit_ns=batch["culprit_ns"],
            waker_kind=batch["waker_kind"],
            waker_tid=batch["waker_tid"],
            waker_name=waker_names,
            woken_ns=self._optional_times(batch["waker_ns"]),
            flags=batch["flags"],
            stack_hash=stack_hashes,
            **{f"{name}_ns": clocks[:, index] for index, name in enumerate(STATES)},
        )
        self._sink.append(tables.EVENTS, rows)

    def offcpu(self, batch: Array, numbers: list[int], futexes: Array, stack_hashes: list[int]) -> None:
        """Off-CPU intervals (`struct offcpu_record`). numbers: of their processes; futexes: where they slept."""
        names = self._names(np.where(batch["waker_kind"] <= 2, batch["waker_tid"], 0), self._name_of_thread)
        rows = tables.OFFCPU.rows(
            len(batch),
            session=self._sink.session,
            start_ns=self._clock.unix_ns(batch["start_ns"]),
            duration_ns=batch["end_ns"] - batch["start_ns"],
            process=numbers,
            pid=batch["pid"],
            tid=batch["tid"],
            comm=self._texts(batch["comm"]),
            state=batch["state"],
            woken_ns=self._optional_times(batch["woken_ns"]),
            cpu=batch["cpu"],
            culprit_pid=self._owners(batch["culprit_pid"]),
            culprit_name=self._texts(batch["culprit_comm"]),
            culprit_ns=batch["culprit_ns"],
            waker_kind=batch["waker_kind"],
            waker_pid=batch["waker_pid"],
            waker_tid=batch["waker_tid"],
            waker_name=names,
            futex=futexes,
            stack_hash=stack_hashes,
            is_gpu_call=MAY_WAIT[batch["call_op"]],
        )
        self._sink.append(tables.OFFCPU, rows)

    def host_events(self, batch: Array) -> None:
        """Block I/O, reclaim, late timers, network (`struct host_record`).

        A socket outlives its process and a request may: by then the slot can be another process's.
        """
        rows = tables.EVENTS.rows(
            len(batch),
            session=self._sink.session,
            start_ns=self._clock.unix_ns(batch["start_ns"]),
            duration_ns=batch["duration_ns"],
            process=self._numbers_if_theirs(batch),
            pid=batch["pid"],
            tid=batch["tid"],
            source=_HOST_SOURCE[batch["kind"]],
            op=_HOST_CODE[batch["kind"]],
            arg0=batch["size_bytes"],
            arg1=batch["arg0"],
            arg2=np.where(batch["device"] != 0, batch["device"], batch["arg1"]),
            cgroup_id=self._cgroup_keys(batch["cgroup_id"]),
            comm=self._texts(batch["comm"]),
            flags=batch["flags"],
            detail=self._addresses(batch),
            queue_ns=_queue_ns(batch),
        )
        self._sink.append(tables.EVENTS, rows)

    def _addresses(self, batch: Array) -> list[int]:
        """The addresses of retransmits only: all sockets of all processes would fill the table of texts."""
        is_retransmit = _HOST_SOURCE[batch["kind"]] == Source.TCP
        ends = zip(is_retransmit.tolist(), batch["address"], strict=True)
        return [self._peers.number(pair.tobytes()) if wanted else 0 for wanted, pair in ends]

    def lifecycle(self, batch: Array) -> None:
        """Starts and ends of processes, kills and stops (`struct lifecycle_record`)."""
        known = batch[np.isin(batch["kind"], list(LIFECYCLE_OPS))]
        if not len(known):
            return
        ops = [LIFECYCLE_OPS[int(kind)] for kind in known["kind"]]
        self._lifecycle.update(ops)
        rows = tables.EVENTS.rows(
            len(known),
            session=self._sink.session,
            start_ns=self._clock.unix_ns(known["time_ns"]),
            process=self.process_numbers(known["process_slot"]),
            pid=known["pid"],
            tid=known["tid"],
            source=int(Source.HOST),
            op=[int(op) for op in ops],
            arg0=known["size_bytes"],
            arg1=known["other_pid"],
            arg2=np.where(np.asarray(ops) == HostOp.OOM_KILL, known["short_of"], known["code"]),
            cgroup_id=self._cgroup_keys(known["cgroup_id"]),
            comm=self._texts(known["comm"]),
        )
        self._sink.append(tables.EVENTS, rows)

    def take_lifecycle(self) -> Counter[HostOp]:
        """How many rows `lifecycle` has made of each operation since the last call."""
        taken, self._lifecycle = self._lifecycle, Counter()
        return taken

    def sync_intervals(self, batch: Array) -> Rows:
        """Rows of sync intervals (`struct sync_interval_record`), at least one, with the time the GPU was done."""
        places = batch["process_slot"].astype(np.int64) << 16 | batch["stream_slot"]
        by_gpu_stream = np.argsort(places, kind="stable")
        batch, places = batch[by_gpu_stream], places[by_gpu_stream]
        rows = self._sync_interval_rows(*self._judged(batch, places))
        self._sink.append(tables.SYNC_INTERVALS, rows)
        return rows

    def forget(self, slot: int) -> None:
        """Forgets the streams of an ended process: a later one in its slot begins anew."""
        for place in [place for place in self._gpu_streams if place >> 16 == slot]:
            del self._gpu_streams[place]

    def _gpu_stream(self, place: int, pid: int, stream: int) -> StreamSyncs:
        """The stream at an index of the kernel's table; a new one if the entry was reused."""
        owner = self._gpu_streams.get(place)
        if owner is None or owner[:2] != (pid, stream):
            owner = self._gpu_streams[place] = (pid, stream, StreamSyncs())
        return owner[2]

    def _judged(self, batch: Array, places: Array) -> tuple[Array, GpuReadiness]:
        """The sync intervals without the time of copies, and when the GPU was done in each.

        Those of a place, which may change hands, stand together.
        """
        owners = np.stack([places, batch["pid"].astype(np.int64), batch["stream"].view(np.int64)])
        begins = np.flatnonzero((np.diff(owners, prepend=-1) != 0).any(axis=0)).tolist()
        parted, found = [], []
        for begin, end in zip(begins, [*begins[1:], len(batch)], strict=True):
            mine = batch[begin:end]
            gpu_stream = self._gpu_stream(int(places[begin]), int(mine["pid"][0]), int(mine["stream"][0]))
            parted.append(gpu_stream.parted(mine))
            found.append(gpu_stream.judge(parted[-1]))
        return np.concatenate(parted), GpuReadiness.concatenate(found)

    def _sync_interval_rows(self, batch: Array, judged: GpuReadiness) -> Rows:
        a, f, s, b = (batch[name].astype(np.int64) for name in ("begin_ns", "first_ns", "sync_ns", "return_ns"))
        r = judged.ready
        flags = batch["flags"].astype(np.int64)
        flags |= judged.is_no_wait * int(SyncIntervalFlag.NO_WAIT) | judged.is_estimated * int(
            SyncIntervalFlag.ESTIMATED
        )
        flags |= self._is_changed(a, b) * int(SyncIntervalFlag.COVERAGE_CHANGED)
        flags |= batch["are_enqueues_unseen"].astype(np.int64) * int(SyncIntervalFlag.ENQUEUES_UNSEEN)
        # Only the return is converted: the parts are whole to the nanosecond whatever the wall clock does meanwhile.
        to_unix = self._clock.unix_ns(b) - b
        op_sets = [self._op_names(words.tobytes()) for words in batch["op_set"]]
        return tables.SYNC_INTERVALS.rows(
            len(batch),
            session=self._sink.session,
            process=self.process_numbers(batch["process_slot"]),
            pid=batch["pid"],
            device=self.gpus(batch["device"]),
            stream=batch["stream"],
            prev_sync_end_ns=a + to_unix,
            first_launch_ns=f + to_unix,
            sync_start_ns=s + to_unix,
            gpu_done_ns=r + to_unix,
            gpu_done_low_ns=judged.low + to_unix,
            gpu_done_high_ns=judged.high + to_unix,
            sync_end_ns=b + to_unix,
            idle_ns=f - a,
            busy_ns=r - f,
            return_delay_ns=b - r,
            launches=batch["launches"],
            bytes=batch["size_bytes"],
            op_set=[self._sink.intern(text) for text in op_sets],
            step_type=[self._sink.intern(text) for text in _class_keys(batch, op_sets)],
            source=SOURCE_OF_OP[batch["op"]],
            op=CODE_OF_OP[batch["op"]],
            caller=batch["caller"],
            graph=batch["graph"],
            prev_sync_tid=batch["begin_tid"],
            first_launch_tid=batch["first_tid"],
            sync_tid=batch["sync_tid"],
            flags=flags,
            checkpoint_step=batch["step"],
            checkpoints=self._checkpoints(batch["checkpoint_ns"]),
            **_parts(batch),
        )

    def _checkpoints(self, times: Array) -> list[bytes]:
        """Checkpoints as little-endian 64-bit unix ns; a row ends before its first unused one."""
        unix = self._clock.unix_ns(times).astype("<i8")
        return [row[:used].tobytes() for row, used in zip(unix, (times != 0).sum(axis=1), strict=True)]

    @staticmethod
    @lru_cache(maxsize=1024)
    def _op_names(words: bytes) -> str:
        return ",".join(BY_ID[op].name for op in op_ids(np.frombuffer(words, np.uint64)) if op in BY_ID)

    def gpus(self, gpus: Array) -> Array:
        """The GPU of each record; the default where none is known."""
        return np.where(gpus < 0, self._default_device, gpus)

    def process_numbers(self, slots: Array) -> list[int]:
        """The number of the process of each record."""
        return _map_distinct(slots, self.number)

    def _numbers_if_theirs(self, batch: Array) -> list[int]:
        """The process number of each record, if the slot is still that of the record's process; else 0."""
        owners = batch["process_slot"].astype(np.int64) << 32 | batch["pid"]

        def number(owner: int) -> int:
            traced_process = self._traced_processes.at(owner >> 32)
            return traced_process.number if traced_process and traced_process.pid == owner & 0xFFFFFFFF else 0

        return _map_distinct(owners, number)

    def number(self, slot: int) -> int:
        """The number of the process that has a slot, 0 if none has."""
        traced_process = self._traced_processes.at(slot)
        return traced_process.number if traced_process else 0

    def _caller_libraries(self, slots: Array, callers: Array) -> list[int]:
        pairs = slots.astype(np.uint64) << np.uint64(48) | callers & np.uint64((1 << 48) - 1)
        return _map_distinct(pairs, lambda pair: self._library(self._traced_processes.at(pair >> 48), pair))

    def _library(self, traced_process: TracedProcess | None, pair: int) -> int:
        name = traced_process.callers.place(pair & (1 << 48) - 1).library if traced_process else ""
        return self._sink.intern(name) if name else 0

    def _texts(self, column: Array) -> list[int]:
        return _map_distinct(column, lambda raw: self._sink.intern(decoded(raw)) if raw else 0)

    def _names(self, ids: Array, name_of: Callable[[int], str]) -> list[int]:
        def number(value: int) -> int:
            name = name_of(value) if value else ""
            return self._sink.intern(name) if name else 0

        return _map_distinct(ids, number)

    def _optional_times(self, times: Array) -> Array:
        """Wall-clock times; 0 stays 0."""
        return np.where(times == 0, 0, self._clock.unix_ns(times))


def _class_keys(batch: Array, op_sets: Sequence[str]) -> list[str]:
    """The step type of each sync interval; where not all enqueues are traced, counts are left out."""
    names = ("are_enqueues_unseen", "op", "launches", "size_bytes", "graph")
    rows = zip(op_sets, *(batch[name].tolist() for name in names), strict=True)
    return [
        unseen_class_key(op_set, BY_ID[op].name if op in BY_ID else "") if is_unseen else step_type(op_set, *counts)
        for op_set, is_unseen, op, *counts in rows
    ]


def _map_distinct(column: Array, function: Callable[[Any], int]) -> list[int]:
    """The function of each value, called once per distinct one."""
    values = column.tolist()
    numbers = {value: function(value) for value in set(values)}
    return [numbers[value] for value in values]


def _queue_ns(batch: Array) -> list[int | None]:
    """How long block I/O was queued, ns; None for other events and for devices that do not report it (iostats=0)."""
    is_block = (_HOST_SOURCE[batch["kind"]] == Source.IO).tolist()
    return [ns or None if wanted else None for wanted, ns in zip(is_block, batch["arg1"].tolist(), strict=True)]


def _parts(batch: Array) -> dict[str, list[int | None]]:
    """Thread-state times of the three parts; None where another thread took over within the part."""
    flags = batch["flags"]
    other_e, other_x = (
        (flags & SyncIntervalFlag.IDLE_OTHER_THREAD) != 0,
        (flags & SyncIntervalFlag.LAUNCH_OTHER_THREAD) != 0,
    )
    columns: dict[str, list[int | None]] = {}
    never = np.zeros(len(batch), bool)
    for part, unknown in (("idle", other_e), ("launch", other_x), ("sync", never)):
        unknown_at = np.flatnonzero(unknown).tolist()
        by_clock: list[list[int | None]] = batch[f"{part}_state_ns"].astype(np.int64).T.tolist()
        for clock, values in zip(STATES, by_clock, strict=True):
            for at in unknown_at:
                values[at] = None
            columns[f"{part}_{clock}_ns"] = values
    return columns
