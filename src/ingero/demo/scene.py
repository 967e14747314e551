"""A recording made by hand: sync intervals, waits and calls put together by a script and stored by the real writer.

It serves the golden pairs of the rules and, with the tables around them (whole_scene.py), the demos of hosts without
root. Times are seconds from its begin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from ingero.events import STATES, THREAD_STATES, WAKER_KINDS, SyncIntervalFlag
from ingero.ops import OPS, HostOp, IoOp, NetOp, Op, Source, TcpOp
from ingero.store import histograms, tables
from ingero.store.records import HaltLevel, SessionFacts
from ingero.store.tables import Row, Table, Value
from ingero.store.vocabulary import CulpritKind
from ingero.store.writer import Writer
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
Frames = Sequence[tuple[str, int, str]]  # (file, line, function), innermost first

BEGIN_NS = 1_760_000_000_000_000_000
AGENT_PID = 77
_BY_NAME: Mapping[str, Op] = {op.name: op for op in OPS}
_FLUSH_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One sync interval: its parts in ms, and the thread-state time of the critical-path thread in each (ms).

    What `empty` and `enqueue` (by name of STATES) do not name is `run`, of the sync `sleep`.
    """

    empty_ms: float = 0.5
    enqueue_ms: float = 1.0  # from the first launch to the sync
    busy_ms: float = 6.0  # from the first launch until the GPU is done
    late_ms: float = 0.05
    empty: Mapping[str, float] = field(default_factory=dict)
    enqueue: Mapping[str, float] = field(default_factory=dict)
    sync: Mapping[str, float] = field(default_factory=dict)
    launches: int = 80
    size_bytes: int = 1 << 20
    flags: int = 0  # of SyncIntervalFlag
    noise: float = 0.004  # of busy_ms, one sigma
    is_unseen: bool = False  # its launches are not traced: until the sync it is the host's part, in `empty`
    ran_instead: tuple[tuple[int, str], ...] = ()  # (pid, name), in a WholeScene: equal shares of the `runq` time
    stack: Frames = ()  # in a WholeScene: where the thread sleeps before its first launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One sync interval of a loop whose steps have one or more of them.

    calls: by name, how many and ms per call, the sync among them; sizes: bytes per call. longest: by name, ms of one
    more call in each interval, the first of its name.
    """

    step: Step
    sync_op: str = "cudaStreamSynchronize"
    calls: Mapping[str, tuple[float, float]] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, float] = field(default_factory=dict)

    @property
    def made(self) -> Mapping[str, tuple[float, float]]:
        """The calls of an interval, the usual ones unless they are named."""
        return self.calls or _USUAL_CALLS | {self.sync_op: (1.0, self.step.busy_ms - self.step.enqueue_ms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The sync intervals of one phase: their times, and thread-state time (ns) by column of `raw_sync_intervals`."""

    times: Mapping[str, Array]
    states: Mapping[str, Array]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.times["prev_sync_end_ns"])

    @property
    def seconds(self) -> Array:
        """In which second of the recording each ended."""
        seconds: Array = (self.times["sync_end_ns"] - BEGIN_NS) // SECOND_NS
        return seconds

    def of_part(self, part: str) -> dict[str, Array]:
        """The thread-state time of one part, by name of STATES."""
        return {name: self.states[f"{part}_{name}_ns"] for name in STATES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A process of the scene; its main thread has its pid."""

    number: int
    pid: int
    name: str


class Scene:
    """Writes one recording; a context manager. What a method writes is stored as the recorder would have."""

    def __init__(
        self,
        path: Path,
        *,
        seconds: float,
        not_traced: Mapping[str, str] | None = None,
        options: Mapping[str, str | int | float | bool | None] | None = None,
        seed: int = 1,
        node: str = "demo",
        machine_id: str = "",
        boot_id: str = "",
        cpu_count: int = 4,
    ):
        self.path = path
        self._end_ns = BEGIN_NS + int(seconds * SECOND_NS)
        facts = SessionFacts(
            uuid=f"demo-{path.stem}-{node}-{seed}",
            started_ns=BEGIN_NS,
            machine_id=machine_id,
            boot_id=boot_id,
            cpu_count=cpu_count,
            not_traced=dict(not_traced or {}),
            options=dict(options or {}),
            ingero_ver="demo",
            agent_pid=AGENT_PID,
        )
        self._writer = Writer(path, session=facts, node=node, clock=lambda: self._end_ns)
        self._random = np.random.default_rng(seed)
        self._appended = 0
        self._threads: set[int] = set()
        self._stacks: set[int] = set()
        self._live: dict[tuple[int, int], dict[tuple[int, int], int]] = {}  # blocks by (op, stack) of (process, kind)

    def __enter__(self) -> Scene:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def at(self, seconds: float) -> int:
        """The unix time of a moment of the scene, ns."""
        return BEGIN_NS + int(seconds * SECOND_NS)

    def text(self, text: str) -> int:
        """The number of a text."""
        return self._writer.intern(text)

    def append(self, table: Table, count: int = 1, /, **columns: tables.Column) -> None:
        """Rows of any table; `session` is filled in."""
        if "session" in table.columns:
            columns.setdefault("session", self._writer.session)
        self._rows(table, table.rows(count, **columns))

    def _rows(self, table: Table, rows: Sequence[Row]) -> None:
        self._writer.append(table, rows)
        self._appended += len(rows)
        if self._appended >= _FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Stores what was written so far: readers see it."""
        self._writer.flush()
        self._appended = 0

    # Who

    def process(
        self, pid: int, name: str, *, parent: Actor | None = None, start_s: float = -3600, **columns: Value
    ) -> Actor:
        """A traced process, an hour old unless it began at start_s."""
        number = self._writer.process_id(pid, self.at(start_s))
        self.append(
            tables.PROCESSES,
            process=number,
            pid=pid,
            start_ns=self.at(start_s),
            name=name,
            parent_pid=parent.pid if parent else 1,
            first_seen_ns=BEGIN_NS,
            last_seen_ns=self._end_ns,
            **columns,
        )
        self._thread(number, pid, name)
        return Actor(number=number, pid=pid, name=name)

    def _thread(self, process: int, tid: int, name: str) -> None:
        """A thread with its name, once."""
        if tid not in self._threads:
            self._threads.add(tid)
            self.append(tables.THREADS, process=process, tid=tid, name=name)

    # The device

    def train(
        self,
        actor: Actor,
        begin_s: float,
        end_s: float,
        step: Step,
        *,
        stream: int = 0,
        sync_op: str = "cudaStreamSynchronize",
        calls: Mapping[str, tuple[float, float]] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> list[tuple[float, float, float]]:
        """Steps from begin_s to end_s, one sync each. calls: by name, how many per step and ms per call;
        sizes: bytes per call.

        Answers each step's begin, first enqueue and end in seconds.
        """
        phase = Phase(step=step, sync_op=sync_op, calls=calls, sizes=sizes or {})
        return self.cycle(actor, begin_s, end_s, [phase], stream=stream)

    def cycle(
        self, actor: Actor, begin_s: float, end_s: float, phases: Sequence[Phase], *, stream: int = 0
    ) -> list[tuple[float, float, float]]:
        """Steps from begin_s to end_s, each with a sync interval of every phase.

        Answers the begin, first launch and end of the last interval of each step, in seconds.
        """
        now = self.at(begin_s)
        end_ns = self.at(end_s)
        columns: list[dict[str, list[int]]] = [{name: [] for name in _SYNC_INTERVAL_TIMES} for _ in phases]
        while now < end_ns:
            for phase, mine in zip(phases, columns, strict=True):
                now = self._next(phase.step, now, mine)
        for phase, mine in zip(phases, columns, strict=True):
            self._write(actor, phase, _intervals(phase.step, mine), stream)
        steps = zip(
            columns[-1]["prev_sync_end_ns"], columns[-1]["first_launch_ns"], columns[-1]["sync_end_ns"], strict=True
        )
        return [tuple((ns - BEGIN_NS) / SECOND_NS for ns in one) for one in steps]  # type: ignore[misc]

    def _next(self, step: Step, now: int, columns: Mapping[str, list[int]]) -> int:
        """Adds the times of one sync interval; answers when it ends."""
        busy = step.busy_ms * (1 + step.noise * float(self._random.standard_normal()))
        first = now + _ns(step.empty_ms)
        sync = first + _ns(min(step.enqueue_ms, busy))
        ready = first + _ns(busy)
        back = max(ready, sync) + _ns(step.late_ms)
        for name, value in zip(_SYNC_INTERVAL_TIMES, (now, first, sync, ready, back), strict=True):
            columns[name].append(value)
        return back

    def _write(self, actor: Actor, phase: Phase, intervals: Intervals, stream: int) -> None:
        """All that is known of the intervals of one phase."""
        self._sync_intervals(actor, phase, intervals, stream)
        for second in np.unique(intervals.seconds):
            mine = intervals.seconds == second
            for name in phase.made:
                self._calls_of(actor, phase, intervals, mine, name)

    def _sync_intervals(self, actor: Actor, phase: Phase, intervals: Intervals, stream: int) -> None:
        step, sync = phase.step, _BY_NAME[phase.sync_op]
        a, f, s, r, b = (intervals.times[name] for name in _SYNC_INTERVAL_TIMES)
        key = (
            "launches not traced"
            if step.is_unseen
            else f"launches 2^{step.launches.bit_length() - 1} bytes 2^{step.size_bytes.bit_length() - 1}"
        )
        self.append(
            tables.SYNC_INTERVALS,
            intervals.count,
            process=actor.number,
            pid=actor.pid,
            device=0,
            stream=stream,
            flags=step.flags | (int(SyncIntervalFlag.ENQUEUES_UNSEEN) if step.is_unseen else 0),
            prev_sync_end_ns=a,
            first_launch_ns=f,
            sync_start_ns=s,
            gpu_done_ns=r,
            gpu_done_low_ns=r,
            gpu_done_high_ns=r,
            sync_end_ns=b,
            idle_ns=f - a,
            busy_ns=r - f,
            return_delay_ns=b - r,
            launches=0 if step.is_unseen else step.launches,
            bytes=step.size_bytes,
            op_set=self.text("cudaLaunchKernel,cudaMemcpyAsync"),
            step_type=self.text(key),
            source=int(sync.source),
            op=sync.code,
            prev_sync_tid=actor.pid,
            first_launch_tid=actor.pid,
            sync_tid=actor.pid,
            **intervals.states,
        )

    def _calls_of(self, actor: Actor, phase: Phase, intervals: Intervals, mine: Array, name: str) -> None:
        """The exact sums of one operation's calls in the intervals that ended in one second."""
        per_step, ms = phase.made[name]
        second, count = float(intervals.seconds[mine][0]), round(per_step * int(mine.sum()))
        columns: dict[str, Value] = {"bytes": count * phase.sizes.get(name, 0)}
        columns["recorded"] = self._recorded(phase, mine, name)
        copies_on = phase.step.flags & int(SyncIntervalFlag.BEFORE_COPY)  # the call is longer than the wait in it
        if name != phase.sync_op or per_step != 1 or copies_on:
            self.op(actor, name, second, count, ms, **columns)
            if name in phase.longest:
                self.op(actor, name, second, int(mine.sum()), phase.longest[name])
            return
        lengths = (intervals.times["sync_end_ns"] - intervals.times["sync_start_ns"])[mine]
        states = {f"{state}_ns": int(ns[mine].sum()) for state, ns in intervals.of_part("sync").items()}
        self._sums(actor, _BY_NAME[name], second, lengths, states | columns)

    def _recorded(self, _phase: Phase, _mine: Array, _name: str) -> int:
        """How many of an operation's calls in these intervals have a row each."""
        return 0

    def op(self, actor: Actor, name: str, at_s: float, count: int, ms: float, **columns: Value) -> None:
        """`count` calls of one operation in the second at_s, `ms` each, on a CPU unless columns say more."""
        if count:
            lengths = np.full(count, _ns(ms), np.int64)
            states: dict[str, Value] = {"run_ns": count * _ns(ms)} | _NO_CLOCKS
            self._sums(actor, _BY_NAME[name], at_s, lengths, states | columns)

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
        op = _BY_NAME[name]
        known: dict[str, Value] = {
            "process": actor.number,
            "pid": actor.pid,
            "tid": actor.pid,
            "comm": self.text(actor.name),
        }
        known |= {"source": int(op.source), "op": op.code, "start_ns": self.at(at_s), "duration_ns": _ns(ms)}
        self.append(tables.EVENTS, **(known | columns))

    # The host

    def host_event(
        self,
        kind: HostOp | IoOp | TcpOp | NetOp,
        at_s: float,
        *,
        actor: Actor | None = None,
        ms: float = 0,
        **columns: Value,
    ) -> None:
        """One event of the kernel."""
        sources = {HostOp: Source.HOST, IoOp: Source.IO, TcpOp: Source.TCP, NetOp: Source.NET}
        known: dict[str, Value] = {"process": actor.number if actor else 0, "pid": actor.pid if actor else 0}
        known |= {"tid": known["pid"], "source": int(sources[type(kind)]), "op": int(kind)}
        known |= {"start_ns": self.at(at_s), "duration_ns": _ns(ms)}
        self.append(tables.EVENTS, **(known | columns))

    def off_cpu(
        self,
        actor: Actor,
        begin_s: float,
        end_s: float,
        state: str,
        *,
        woken_s: float | None = None,
        waker: Actor | Literal["timer", "network", "block", "interrupt", "kworker"] | None = None,
        culprit: tuple[int, str] | None = None,
        tid: int | None = None,
        cpu: int = 0,
        futex: int = 0,
        stack: Sequence[tuple[str, int, str]] = (),
        is_gpu_call: bool = False,
    ) -> None:
        """A thread (the main one) was off the CPU; a sleep ends at woken_s (end_s unless given) by its waker.

        stack: where it was as it went to sleep, as in `sample`.
        """
        begin, end = self.at(begin_s), self.at(end_s)
        known: dict[str, Value] = {"start_ns": begin, "duration_ns": end - begin, "state": THREAD_STATES.index(state)}
        known |= {"process": actor.number, "pid": actor.pid, "tid": tid or actor.pid, "comm": self.text(actor.name)}
        known |= {"cpu": cpu, "futex": futex, "stack_hash": self.stack(stack) if stack else 0}
        known["is_gpu_call"] = int(is_gpu_call)
        self._thread(actor.number, tid or actor.pid, actor.name)
        if waker is not None:
            kind = waker if isinstance(waker, str) else "thread"
            known |= {"waker_kind": WAKER_KINDS.index(kind), "woken_ns": end if woken_s is None else self.at(woken_s)}
            if isinstance(waker, Actor):
                if waker.number:
                    self._thread(waker.number, waker.pid, waker.name)
                known |= {"waker_pid": waker.pid, "waker_tid": waker.pid, "waker_name": self.text(waker.name)}
        if culprit:
            known |= {"culprit_pid": culprit[0], "culprit_name": self.text(culprit[1]), "culprit_ns": end - begin}
        self.append(tables.OFFCPU, **known)
        if waker is not None:
            told = {name: value for name, value in known.items() if name.startswith("waker_")}
            place: dict[str, Value] = {"start_ns": begin, "process": actor.number, "count": 1, "sleep_ns": end - begin}
            self.append(tables.WAKERS, **(told | place))

    def uses_gpu(self, actor: Actor, uuid: str = "GPU-0") -> None:
        """The driver has seen a process on this GPU only."""
        self.append(tables.PROCESS_GPUS, process=actor.number, ordinal=-1, uuid=uuid)

    def gpu(
        self,
        at_s: float,
        *,
        mhz: int = 1980,
        reasons: int = 0,
        percent: int = 97,
        uuid: str = "GPU-0",
        index: int = 0,
        used_bytes: int = 8 << 30,
        total_bytes: int = 16 << 30,
        processes: Sequence[tuple[int, int]] = (),
        link: tuple[int, int] | None = None,
    ) -> None:
        """One sample of the driver's; processes: (pid, bytes); link: generation and lanes."""
        self.append(
            tables.GPU_SAMPLES,
            time_ns=self.at(at_s),
            uuid=uuid,
            gpu_index=index,
            gpu_percent=percent,
            sm_clock_mhz=mhz,
            max_sm_clock_mhz=1980,
            throttle_reasons=reasons,
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            pcie_generation=link[0] if link else None,
            pcie_lanes=link[1] if link else None,
            processes=json.dumps(processes),
        )

    def second(self, actor: Actor, at_s: float, *, major_faults: int = 0, **clocks_ms: float) -> None:
        """What the threads of a process did in one second, by name of STATES in ms; asleep for the rest."""
        spent = {name: _ns(clocks_ms.get(name, 0)) for name in STATES}
        spent["sleep"] = max(spent["sleep"], SECOND_NS - sum(spent.values()))
        clocks: dict[str, Value] = {f"{name}_ns": ns for name, ns in spent.items()}
        clocks |= {"start_ns": self.at(at_s), "process": actor.number, "threads": 1, "major_faults": major_faults}
        self.append(tables.THREAD_STATE_SECONDS, **clocks)

    def stack(self, frames: Sequence[tuple[str, int, str]], *, native: Sequence[str] = ()) -> int:
        """The number of a stack of (file, line, function), innermost first.

        native: functions inside those, of libc or, with a colon, of another file: `libcuda.so.1:cuModuleLoadData`.
        """
        number = self.text(f"stack {frames} {native}")
        if number not in self._stacks:
            self._stacks.add(number)
            stored: list[dict[str, str | int]] = [
                {"symbol": one.rpartition(":")[2], "file": one.rpartition(":")[0] or "libc.so.6"} for one in native
            ]
            stored += [{"py_file": file, "py_line": line, "py_func": function} for file, line, function in frames]
            self.append(tables.STACKS, hash=number, ips="[]", frames=json.dumps(stored))
        return number

    def sample(
        self,
        actor: Actor,
        at_s: float,
        stack: Sequence[tuple[str, int, str]],
        *,
        state: str = "run",
        ms: float = 20,
        is_collecting: bool = False,
        tid: int | None = None,
        native: Sequence[str] = (),
    ) -> None:
        """A thread (the main one) was at this stack, as in `stack`, outside any call."""
        known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": tid or actor.pid}
        known |= {"time_ns": self.at(at_s), "state": THREAD_STATES.index(state), "weight_ns": _ns(ms)}
        self.append(
            tables.SAMPLES, is_collecting=int(is_collecting), stack_hash=self.stack(stack, native=native), **known
        )

    def took(
        self,
        affected: Actor,
        pid: int,
        name: str,
        at_s: float,
        ms: float,
        *,
        switches: int = 1,
        kind: CulpritKind = CulpritKind.RUNQ,
        cgroup_id: int = 0,
    ) -> None:
        """Who ran for how long in one second while the affected process was runnable."""
        self.append(
            tables.CULPRITS,
            start_ns=self.at(at_s),
            process=affected.number,
            kind=int(kind),
            culprit_pid=pid,
            culprit_name=self.text(name),
            culprit_cgroup_id=cgroup_id,
            ns=_ns(ms),
            switches=switches,
        )

    def scheduling(self, pid: int, at_s: float = 0, *, process: int = 0, **columns: Value) -> None:
        """How the scheduler is told to treat a process's main thread from at_s on; the rest as usual."""
        usual: dict[str, Value] = {"nice": 0, "policy": "other", "cpus_allowed": "0-3"}
        place: dict[str, Value] = {"time_ns": self.at(at_s), "process": process, "pid": pid, "tid": pid}
        self.append(tables.SCHEDULING, **(usual | place | columns))

    def cpus(self, begin_s: int, end_s: int, busy: Sequence[float], *, stolen: float = 0.0) -> None:
        """How busy each CPU was, 0 to 1, in each second, and how much of each a hypervisor had."""
        ticks = [
            [cpu, round(100 * share), round(100 * (1 - share - stolen)), 0, 0, round(100 * stolen)]
            for cpu, share in enumerate(busy)
        ]
        for second in range(begin_s, end_s):
            columns: dict[str, Value] = {"time_ns": self.at(second + 1), "cpus": json.dumps(ticks)}
            self.append(tables.CPU_SECONDS, elapsed_ns=SECOND_NS, tick_ns=SECOND_NS // 100, **columns)

    def numa(self, *nodes: tuple[str, Sequence[str]]) -> None:
        """NUMA nodes from 0 on, each with its CPUs and GPUs (uuid)."""
        for node, (cpus, gpus) in enumerate(nodes):
            self.append(tables.NUMA_NODES, numa_node=node, cpus=cpus, gpus=json.dumps(list(gpus)))

    def agent(self, begin_s: int, end_s: int, ms: float) -> None:
        """What the recorder itself used of a CPU in each second."""
        for second in range(begin_s, end_s):
            self.append(tables.SNAPSHOTS, time_ns=self.at(second + 1), agent_cpu_ns=_ns(ms))

    # Memory of the GPU

    def memory(
        self,
        actor: Actor,
        name: str,
        at_s: float,
        count: int,
        size_bytes: int,
        *,
        freed: int = 0,
        stack: int = 0,
        failures: int = 0,
        unpaired: int = 0,
    ) -> None:
        """What one line did in the second at_s: `count` allocations of size_bytes each, `freed` of them freed, ever
        since; failures: more of them that were refused.
        """
        op = _BY_NAME[name]
        assert op.memory is not None, f"{name} allocates nothing"
        live = self._live.setdefault((actor.number, int(op.memory)), {})
        live[op.code, stack] = live.get((op.code, stack), 0) + count - freed
        place = {"start_ns": self.at(at_s), "process": actor.number, "memory_kind": int(op.memory)}
        self.append(
            tables.ALLOCATIONS,
            **place,
            source=int(op.source),
            op=op.code,
            stack_hash=stack,
            live_bytes=live[op.code, stack] * size_bytes,
            live_count=live[op.code, stack],
            peak_bytes=live[op.code, stack] * size_bytes,
            allocated_bytes=count * size_bytes,
            freed_bytes=freed * size_bytes,
            allocations=count,
            frees=freed,
            failures=failures,
            failed_bytes=failures * size_bytes,
        )
        total = sum(live.values())
        levels = {"live_bytes": total * size_bytes, "live_count": total, "peak_bytes": total * size_bytes}
        self.append(tables.MEMORY_SECONDS, **place, **levels, unpaired=unpaired)

    # Communication

    def communicator(self, actor: Actor, *, rank: int, ranks: int, comm_id_hash: int = 77) -> None:
        """One that all ranks have made with the same id."""
        known: dict[str, Value] = {"process": actor.number, "number": 1, "handle": 0xC0, "created_ns": BEGIN_NS}
        known |= {"comm_id_hash": comm_id_hash, "rank": rank, "nranks": ranks, "origin": "ncclCommInitRank"}
        self.append(tables.COMMUNICATORS, **known)

    def collective(
        self, actor: Actor, name: str, at_s: float, sequence: int, size_bytes: int, *, datatype: int = 7, stack: int = 0
    ) -> None:
        """One recorded collective on its communicator; datatype: ncclDataType_t (7: float32)."""
        place = 1 << 40 | sequence
        self.call(actor, name, at_s, 0.02, arg0=size_bytes, arg1=0xC0, arg2=datatype, function=place, stack_hash=stack)

    def open_call(
        self, actor: Actor, name: str, since_s: float, until_s: float, *, stack: int = 0, awake: float = 0.0
    ) -> None:
        """A call that is seen open each second from its begin until until_s. awake: of that time, its thread."""
        op = _BY_NAME[name]
        for second in range(int(since_s) + 1, int(until_s) + 1):
            known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": actor.pid}
            known["awake_ns"] = int(awake * (second - int(since_s) - 1) * SECOND_NS)
            known |= {"source": int(op.source), "op": op.code, "since_ns": self.at(since_s), "stack_hash": stack}
            self.append(tables.IN_FLIGHT, time_ns=self.at(second), **known)

    def halt(
        self,
        actor: Actor,
        since_s: float,
        until_s: float,
        kind: str,
        *,
        level: HaltLevel = HaltLevel.NEVER,
        above: Actor | None = None,
        owners: Sequence[tuple[Actor, str]] = (),
        is_counted: bool = True,
        **columns: Value,
    ) -> None:
        """A process that is seen at the end of each second from since_s to until_s to wait in its first thread.

        above: the halted process that waits for this one. owners: who could end it, with the letter of their state.
        is_counted: its clocks are written as well.
        """
        known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": actor.pid, "state": "S"}
        known |= {"halted": (above or actor).number, "depth": int(above is not None), "name": self.text(actor.name)}
        known |= {"kind": kind, "level": int(level), "syscall": kind, "since_ns": self.at(since_s)}
        known["owners"] = json.dumps([[owner.pid, owner.name, state] for owner, state in owners])
        for second in range(int(since_s) + 1, int(until_s)):
            self.append(tables.HALTS, time_ns=self.at(second + 0.9), **(known | columns))
            if is_counted:
                self.second(actor, second)


_SYNC_INTERVAL_TIMES = ("prev_sync_end_ns", "first_launch_ns", "sync_start_ns", "gpu_done_ns", "sync_end_ns")
_USUAL_CALLS: dict[str, tuple[float, float]] = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (2.0, 0.01)}
_NO_CLOCKS: dict[str, Value] = {f"{name}_ns": 0 for name in STATES if name != "run"}


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def _intervals(step: Step, columns: Mapping[str, Sequence[int]]) -> Intervals:
    """With the states of the thread: what a step does not name is `run`, in the sync `sleep`."""
    a, f, s, r, b = (np.array(columns[name], np.int64) for name in _SYNC_INTERVAL_TIMES)
    f = s if step.is_unseen else f
    states: dict[str, Array] = {}
    parts = {"idle": (f - a, step.empty, "run"), "launch": (s - f, step.enqueue, "run")}
    parts |= {"sync": (b - s, step.sync, "sleep")}
    for part, (lengths, named, rest) in parts.items():
        spent = {name: np.minimum(_ns(ms), lengths) for name, ms in named.items()}
        total = np.sum(list(spent.values()), axis=0) if spent else np.zeros(len(a), np.int64)
        for name in STATES:
            more = np.maximum(lengths - total, 0) if name == rest else 0
            states[f"{part}_{name}_ns"] = np.broadcast_to(spent.get(name, 0) + more, len(a)).astype(np.int64)
    return Intervals(times=dict(zip(_SYNC_INTERVAL_TIMES, (a, f, s, r, b), strict=True)), states=states)
