"""A scripted recording with every table of a real one, all in agreement with each other.

scene.py writes the sync intervals and sums of a scripted training loop; here the loop also gets its steps, off-CPU
time, recorded calls with stacks, stack samples, progress marks, kernels, copies, and rows of the host and the GPU for
each second. All of them are computed from the same intervals, so that all views agree.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np

from ingero.demo.scene import BEGIN_NS, Actor, Array, Frames, Intervals, Phase, ScriptedRun
from ingero.events import STATES, THREAD_STATES, WAKER_KINDS, CallFlag, SyncIntervalFlag
from ingero.ops import BY_NAME, OPS, Kind, Source
from ingero.store import histograms
from ingero.store.vocabulary import CulpritKind
from ingero.store.writing import tables
from ingero.store.writing.tables import Table, Value
from ingero.units import SECOND_NS

CPUS = 2
_GPU_BYTES, _USED_BYTES = 16 << 30, 6 << 30
_HOST_BYTES, _FREE_BYTES = 32 << 30, 24 << 30
_RECORDED = 7  # of so many steps, one has rows of its calls
_CALLS_OF_STEP = 2  # that are recorded of each operation
_SAMPLED = 4  # of so many steps, one has samples
_AGENT_MS = 12.0  # of a CPU in each second
_AGENT_BYTES = 90 << 20
_MARGIN = 0.02  # of the CPUs, at work for others in each second

_TRAIN, _MODEL = "/srv/job/train.py", "/srv/job/model.py"
_MAIN: Frames = ((_TRAIN, 142, "train_sync_interval"), (_TRAIN, 160, "main"))
_BATCH: Frames = ((_TRAIN, 118, "next_batch"), *_MAIN)
_FORWARD: Frames = ((_MODEL, 61, "Attention.forward"), (_MODEL, 97, "Transformer.forward"), *_MAIN)
_COPY: Frames = ((_TRAIN, 124, "copy_batch"), *_MAIN)
_LOSS: Frames = ((_TRAIN, 131, "read_loss"), *_MAIN)
_TORCH = "libtorch_cuda.so"
_KERNELS = (
    ("ampere_sgemm_128x64_tn", 4),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, float*)", 3),
    ("void at::native::softmax_warp_forward<float, float, float, 9>(float*, float const*, int)", 1),
)
_FUNCTION = 0x5600_0000_0000
_LIBRARIES = {Source.CUDA: "libcudart.so.12", Source.DRIVER: "libcuda.so.1", Source.NCCL: "libnccl.so.2"}


class FullScriptedRun(ScriptedRun):
    """A run on two CPUs and one GPU, in which every process trains. A context manager, as `ScriptedRun`."""

    def __init__(self, path: Path, *, seconds: float, node: str = "demo", **identity: str) -> None:
        options: dict[str, str | int | float | bool | None] = {"stack": True, "nccl": True, "node": node}
        super().__init__(path, seconds=seconds, node=node, cpu_count=CPUS, options=options, **identity)  # type: ignore[arg-type]
        self._seconds, self._node = int(np.ceil(seconds)), node
        self.gpu_uuid = f"GPU-{crc32(node.encode()):08x}-1111-2222-3333-444444444444"
        self._actors: dict[int, Actor] = {}
        self._loops: dict[int, list[Intervals]] = defaultdict(list)
        self._positions: dict[int, int] = defaultdict(int)
        self._others = np.zeros(self._seconds + 1)  # CPUs that neighbors kept busy, by second
        self._turn = 0  # of those who ran instead
        self._sums_by: dict[tuple[object, ...], dict[str, Any]] = {}

    def __enter__(self) -> FullScriptedRun:
        super().__enter__()
        self._host()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        super().__exit__(kind, error, trace)

    # Around the loops

    def process(
        self, pid: int, name: str, *, parent: Actor | None = None, start_s: float = -3600, **columns: Value
    ) -> Actor:
        """A process that trains on the GPU."""
        known: dict[str, Value] = {"cgroup_id": 1, "cmdline": f"{name} {_TRAIN}"}
        actor = super().process(pid, name, parent=parent, start_s=start_s, **(known | columns))
        self._actors[actor.number] = actor
        for ordinal in (-1, 0):
            self.append(tables.PROCESS_GPUS, process=actor.number, ordinal=ordinal, uuid=self.gpu_uuid)
        self.scheduling(pid, process=actor.number, cpus_allowed=f"0-{CPUS - 1}", cpu_weight=100)
        for at, (kernel, _) in enumerate(_KERNELS):
            self.append(
                tables.KERNELS,
                process=actor.number,
                function=_FUNCTION + at,
                name=kernel,
                short_name=kernel.removeprefix("void ").split("<")[0],
                library=_TORCH,
                source_of_name="registered with the runtime",
            )
        return actor

    def neighbors(
        self, names: Sequence[tuple[int, str]], begin_s: float, end_s: float, *, nice: int = 0, threads: int = 1
    ) -> None:
        """Adds untraced processes (pid, name) of `threads` threads each that are busy from begin_s to end_s."""
        for pid, _ in names:
            self.scheduling(pid, begin_s, nice=nice, cpus_allowed=f"0-{CPUS - 1}", cpu_weight=100)
        for second in range(self._seconds):
            within = max(0.0, min(end_s, second + 1) - max(begin_s, second))
            self._others[second] += within * len(names) * threads

    def _host(self) -> None:
        """Writes the rows that a recorder writes once: clocks, cgroup, GPU, overhead limiter and probes."""
        self.append(tables.CLOCK_PAIRS, mono_ns=1000 * SECOND_NS, unix_ns=BEGIN_NS)
        self.append(tables.CGROUPS, cgroup_id=1, kernel_cgroup_id=1, node=self._node, cgroup_path="/")
        self.append(
            tables.GPUS,
            uuid=self.gpu_uuid,
            name="Simulated GPU",
            pci_bus_id="00000000:01:00.0",
            memory_bytes=_GPU_BYTES,
            gpu_index=0,
        )
        self.append(tables.OVERHEAD_LEVELS, time_ns=BEGIN_NS, level=0, agent_level=0, reason="start")
        probes = [op for op in OPS if op.source in _LIBRARIES]
        self.append(
            tables.PROBES,
            len(probes),
            library=[f"/usr/lib/x86_64-linux-gnu/{_LIBRARIES[op.source]}" for op in probes],
            symbol=[op.name for op in probes],
            offset=[0x1000 + 0x40 * at for at in range(len(probes))],
            source=[int(op.source) for op in probes],
            op=[op.code for op in probes],
            is_attached=[int(op.source is not Source.NCCL) for op in probes],
            reason=["" if op.source is not Source.NCCL else "not loaded by the process" for op in probes],
        )

    def append(self, table: Table, count: int = 1, /, **columns: tables.Column) -> None:
        """Like `ScriptedRun.append`, except that rows of sums with the same key are added up to one row."""
        key = _SUMMED.get(table.name)
        if key is None:
            super().append(table, count, **columns)
            return
        place = (table.name, *(columns[name] for name in key))
        known = self._sums_by.setdefault(place, {name: columns[name] for name in key})
        for name, value in columns.items():
            if name not in key:
                known[name] = _folded(name, known.get(name), value)

    def _append_sums(self) -> None:
        for (name, *_), columns in self._sums_by.items():
            table = tables.BY_NAME[str(name)]
            if table is tables.CALL_SITES:
                columns |= {"histogram": histograms.pack(columns["histogram"]), "period_s": float(self._seconds)}
            super().append(table, **columns)

    # A loop

    def _write(self, actor: Actor, phase: Phase, intervals: Intervals, stream: int) -> None:
        super()._write(actor, phase, intervals, stream)
        self._loops[actor.number].append(intervals)
        self._off_cpu(actor, phase, intervals)
        self._recorded_calls(actor, phase, intervals)
        self._samples_of(actor, phase, intervals)
        self._marks(actor, phase, intervals)
        self._ran_instead(actor, phase, intervals)
        self._per_second(actor, phase, intervals)
        self._turn += intervals.count if phase.step.ran_instead else 0

    def cycle(
        self, actor: Actor, begin_s: float, end_s: float, phases: Sequence[Phase], *, stream: int = 0
    ) -> list[tuple[float, float, float]]:
        """Like `ScriptedRun.cycle`, plus the rows of the steps that a recorder would find."""
        before = len(self._loops[actor.number])
        known = [_with_sizes(phase) for phase in phases]
        steps = super().cycle(actor, begin_s, end_s, known, stream=stream)
        self._steps(actor, known, self._loops[actor.number][before:])
        return steps

    def _steps(self, actor: Actor, phases: Sequence[Phase], parts: Sequence[Intervals]) -> None:
        """Writes one row per step, which covers all of its sync intervals."""
        marker = BY_NAME[phases[-1].sync_op]
        host = {f"host_{name}_ns": _sum(parts, "idle", name) + _sum(parts, "launch", name) for name in STATES}
        blocked = {f"blocked_{name}_ns": _sum(parts, "sync", name) for name in STATES}
        launches, size = (sum(getattr(phase.step, name) for phase in phases) for name in ("launches", "size_bytes"))
        self.append(
            tables.STEPS,
            parts[-1].count,
            process=actor.number,
            pid=actor.pid,
            tid=actor.pid,
            device=0,
            start_ns=parts[0].times["prev_sync_end_ns"],
            end_ns=parts[-1].times["sync_end_ns"],
            how=self.text("both"),
            step_type=self.text(f"{launches} launches, from {marker.name}"),
            source=int(marker.source),
            op=marker.code,
            launches=launches,
            copies=2,
            syncs=len(phases),
            host_to_gpu_bytes=size,
            blocked_sync_ns=sum(part.times["sync_end_ns"] - part.times["sync_start_ns"] for part in parts),
            flags=int(SyncIntervalFlag.STEP),
            **host,
            **blocked,
        )

    def _off_cpu(self, actor: Actor, phase: Phase, intervals: Intervals) -> None:
        """Writes off-CPU intervals, which end with their part; a sleep and the run-queue wait after it share a row."""
        ends = {"idle": "first_launch_ns", "launch": "sync_start_ns", "sync": "sync_end_ns"}
        for part, end in ends.items():
            states = intervals.of_part(part)
            begins = intervals.times[end] - sum(ns for name, ns in states.items() if name != "run")
            for state in (name for name in STATES if name not in ("run", "runq") and states[name].any()):
                ready = begins + states[state]
                self._intervals_of(actor, phase, part, state, begins, ready, states["runq"])
                begins = ready
            if states["runq"].any() and not any(states[name].any() for name in STATES if name not in ("run", "runq")):
                self._intervals_of(actor, phase, part, "runq", begins, begins, states["runq"])

    def _intervals_of(
        self, actor: Actor, phase: Phase, part: str, state: str, begins: Array, ready: Array, runnable: Array
    ) -> None:
        is_sleep, is_sync = state == "sleep", part == "sync"
        waker = WAKER_KINDS.index("interrupt" if is_sync else "timer") if is_sleep else 0
        known: dict[str, tables.Column] = {**self._place(actor), "state": THREAD_STATES.index(state)}
        if runnable.any() and phase.step.ran_instead:
            known |= self._culprits(phase, runnable)
        stack = phase.step.stack if part == "idle" else _LOSS if is_sync else ()
        self.append(
            tables.OFFCPU,
            len(begins),
            start_ns=begins,
            duration_ns=ready - begins + runnable,
            woken_ns=ready if is_sleep else 0,
            waker_kind=waker,
            cpu=np.arange(len(begins)) % CPUS,
            stack_hash=self.stack(stack) if stack else 0,
            is_gpu_call=int(is_sync),
            **known,
        )
        if is_sleep:
            self._wakers(actor, begins, ready, waker)

    def _wakers(self, actor: Actor, begins: Array, ready: Array, waker: int) -> None:
        for second, mine in _by_second(ready):
            self.append(
                tables.WAKERS,
                start_ns=self.at(second),
                process=actor.number,
                waker_kind=waker,
                count=int(mine.sum()),
                sleep_ns=int((ready - begins)[mine].sum()),
            )

    def _culprits(self, phase: Phase, runnable: Array) -> dict[str, tables.Column]:
        """The columns of which process ran during each wait: in turn, so that all get equal shares."""
        who = (self._turn + np.arange(len(runnable))) % len(phase.step.ran_instead)
        names = [self.text(name) for _, name in phase.step.ran_instead]
        pids = [pid for pid, _ in phase.step.ran_instead]
        return {
            "culprit_pid": np.array(pids, np.int64)[who],
            "culprit_name": np.array(names, np.int64)[who],
            "culprit_ns": runnable,
        }

    def _ran_instead(self, actor: Actor, phase: Phase, intervals: Intervals) -> None:
        """Writes by second which process ran for how long while the thread was runnable."""
        runnable = sum(intervals.of_part(part)["runq"] for part in ("idle", "launch", "sync"))
        if not phase.step.ran_instead or not np.any(runnable):
            return
        culprits = self._culprits(phase, np.asarray(runnable))
        for second, mine in _by_second(intervals.times["sync_end_ns"]):
            for pid, name in phase.step.ran_instead:
                of_culprit = mine & (np.asarray(culprits["culprit_pid"]) == pid)
                if not of_culprit.any():
                    continue
                self.append(
                    tables.CULPRITS,
                    start_ns=self.at(second),
                    process=actor.number,
                    kind=int(CulpritKind.RUNQ),
                    culprit_pid=pid,
                    culprit_name=self.text(name),
                    culprit_cgroup_id=1,
                    ns=int(np.asarray(runnable)[of_culprit].sum()),
                    switches=int(of_culprit.sum()),
                )

    # Its calls

    def _recorded(self, phase: Phase, mine: Array, name: str) -> int:
        """How many of an operation's calls in these intervals are stored as rows."""
        per_step = 1 if name == phase.sync_op else min(_CALLS_OF_STEP, round(phase.interval_calls[name][0]))
        long = int(mine.sum()) if name in phase.longest else 0
        return long + int(per_step * (np.flatnonzero(mine) % _RECORDED == 0).sum())

    def _recorded_calls(self, actor: Actor, phase: Phase, intervals: Intervals) -> None:
        """Writes calls as rows: launches, copies and the sync of a part of the steps, and every long call."""
        some = slice(None, None, _RECORDED)
        first, sync = intervals.times["first_launch_ns"][some], intervals.times["sync_start_ns"][some]
        for name, (per_step, ms) in phase.interval_calls.items():
            if name == phase.sync_op:
                continue
            count = min(_CALLS_OF_STEP, round(per_step))
            for at in range(count):
                begins = first + (sync - first) * (at + 1) // (count + 1)
                self._calls(actor, name, begins, round(ms * 1e6), size_bytes=phase.sizes.get(name, 0))
        for name, ms in phase.longest.items():
            slow = int(CallFlag.SLOW)
            self._calls(actor, name, intervals.times["first_launch_ns"], round(ms * 1e6), flags=slow)
        states = {f"{name}_ns": ns[some] for name, ns in intervals.of_part("sync").items()}
        known: dict[str, tables.Column] = dict(states)
        if states["runq_ns"].any() and phase.step.ran_instead:
            known |= {
                name: np.asarray(column)[some]
                for name, column in self._culprits(phase, intervals.of_part("sync")["runq"]).items()
            }
        back = intervals.times["sync_end_ns"][some]
        self._rows_of(
            actor,
            phase.sync_op,
            sync,
            back - sync,
            woken_ns=back - states["runq_ns"],
            waker_kind=WAKER_KINDS.index("interrupt"),
            arg0=phase.sizes.get(phase.sync_op, 0),
            arg2=int(bool(phase.sizes.get(phase.sync_op, 0))),
            stack_hash=self.stack(_COPY if BY_NAME[phase.sync_op].kind & Kind.COPY else _LOSS),
            flags=int(CallFlag.SAMPLED | CallFlag.WAITED),
            **known,
        )

    def _calls(
        self,
        actor: Actor,
        name: str,
        begins: Array,
        length_ns: int,
        *,
        size_bytes: int = 0,
        flags: int = int(CallFlag.SAMPLED),
    ) -> None:
        """Writes calls that were on a CPU from entry to return."""
        is_launch = bool(BY_NAME[name].kind & Kind.LAUNCH)
        stack = self.stack(_FORWARD, native=(f"{_TORCH}:launch_kernel",)) if is_launch else self.stack(_COPY)
        known: dict[str, tables.Column] = {"stack_hash": stack, "flags": flags, "arg0": size_bytes}
        known |= {"arg2": int(size_bytes > 0), "function": _FUNCTION if is_launch else 0}
        self._rows_of(actor, name, begins, np.full(len(begins), length_ns), run_ns=length_ns, **_IDLE, **known)

    def _rows_of(self, actor: Actor, name: str, begins: Array, lengths: Array, **columns: tables.Column) -> None:
        op, place = BY_NAME[name], self._place(actor)
        known: dict[str, tables.Column] = {
            "source": int(op.source),
            "op": op.code,
            "gpu_id": 0,
            "residual_ns": 0,
            "cpu": 0,
        }
        self.append(tables.EVENTS, len(begins), start_ns=begins, duration_ns=lengths, **(dict(place) | known | columns))

    def _samples_of(self, actor: Actor, phase: Phase, intervals: Intervals) -> None:
        """Writes stack samples of the thread outside its calls, for a part of the steps."""
        some = slice(None, None, _SAMPLED)
        first, sync = intervals.times["first_launch_ns"][some], intervals.times["sync_start_ns"][some]
        asleep = intervals.of_part("idle")["sleep"][some]
        ran = np.maximum(first - intervals.times["prev_sync_end_ns"][some] - asleep, 0)
        in_calls = sum(
            round(count * ms * 1e6) for name, (count, ms) in phase.interval_calls.items() if name != phase.sync_op
        )
        between = np.maximum(sync - first - in_calls - sum(round(ms * 1e6) for ms in phase.longest.values()), 0)
        for times, spent, state, stack in (
            (first - ran // 2, ran, "run", _BATCH),
            (first - ran - asleep // 2, asleep, "sleep", phase.step.stack or _BATCH),
            ((first + sync) // 2, between, "run", _FORWARD),
        ):
            if spent.any():
                self.append(
                    tables.SAMPLES,
                    len(times),
                    time_ns=times,
                    weight_ns=_SAMPLED * spent,
                    state=THREAD_STATES.index(state),
                    stack_hash=self.stack(stack),
                    **self._place(actor),
                )

    def _place(self, actor: Actor) -> dict[str, Value]:
        return {"process": actor.number, "pid": actor.pid, "tid": actor.pid, "comm": self.text(actor.name)}

    # The GPU's side

    def _marks(self, actor: Actor, phase: Phase, intervals: Intervals) -> None:
        """Writes the progress mark of each sync."""
        each = phase.step.launches + 2
        positions = self._positions[actor.number] + each * np.arange(1, intervals.count + 1)
        self._positions[actor.number] = int(positions[-1])
        self.append(
            tables.PROGRESS_MARKS,
            intervals.count,
            process=actor.number,
            device=0,
            kind=self.text("sync"),
            position=positions,
            queued=positions,
            blocked_ns=np.maximum(intervals.times["gpu_done_ns"] - intervals.times["sync_start_ns"], 0),
            time_ns=intervals.times["sync_end_ns"],
        )

    def _per_second(self, actor: Actor, phase: Phase, intervals: Intervals) -> None:
        """Writes by second the launched kernels, the nested calls inside launches, and the copied bytes."""
        launch = BY_NAME["cuLaunchKernel"]
        for second, mine in _by_second(intervals.times["sync_end_ns"]):
            place: dict[str, Value] = {"start_ns": self.at(second), "process": actor.number}
            is_launched = "cudaLaunchKernel" in phase.interval_calls
            launches = int(mine.sum()) * phase.step.launches * is_launched
            whole = sum(part for _, part in _KERNELS)
            parts = [launches * part // whole for _, part in _KERNELS]
            parts[0] += launches - sum(parts)
            for at, count in enumerate(parts):
                if count:
                    self.append(tables.KERNEL_LAUNCHES, function=_FUNCTION + at, count=count, **place)
            if is_launched:
                nested: dict[str, Value] = {"source": int(launch.source), "op": launch.code, "count": 0, "sum_ns": 0}
                nested["nested"] = round(phase.interval_calls["cudaLaunchKernel"][0] * int(mine.sum()))
                self.append(tables.OP_STATS, **(nested | place | dict.fromkeys((f"{state}_ns" for state in STATES), 0)))
            for name, size in phase.sizes.items():
                op = BY_NAME[name]
                count = round(phase.interval_calls[name][0] * int(mine.sum()))
                key: dict[str, Value] = {"source": int(op.source), "op": op.code, "host_to_gpu_bytes": count * size}
                self.append(tables.COPIES, **(place | key))

    # At the end

    def _finish(self) -> None:
        """Writes by second the thread-state time, the host snapshot and the GPU sample."""
        self._append_sums()
        self.append(tables.CLOCK_PAIRS, mono_ns=1000 * SECOND_NS + self._end_ns - BEGIN_NS, unix_ns=self._end_ns)
        edges = np.minimum(BEGIN_NS + SECOND_NS * np.arange(self._seconds + 1), self._end_ns)
        ran, busy = np.zeros(self._seconds), dict[int, Array]()
        for number, loops in self._loops.items():
            ran += self._thread_states(number, loops, edges)
            busy[number] = _within(loops, "first_launch_ns", "gpu_done_ns", edges)
        lengths_ns = np.maximum(np.diff(edges), 1)
        for second in range(self._seconds):
            cpus = min(1.0, ran[second] / lengths_ns[second] / CPUS + self._others[second] / CPUS + _MARGIN)
            self._snapshot(int(edges[second + 1]), cpus, self._others[second])
            shares = {number: float(busy_ns[second] / lengths_ns[second]) for number, busy_ns in busy.items()}
            self._gpu_sample(int(edges[second + 1]), shares)

    def _thread_states(self, number: int, loops: Sequence[Intervals], edges: Array) -> Array:
        """Writes the thread-state time of a process by second; returns its time on a CPU (ns) by second."""
        state_ns = {name: np.zeros(len(edges) - 1, np.int64) for name in STATES}
        for part, begin, end in (
            ("idle", "prev_sync_end_ns", "first_launch_ns"),
            ("launch", "first_launch_ns", "sync_start_ns"),
            ("sync", "sync_start_ns", "sync_end_ns"),
        ):
            for name in STATES:
                state_ns[name] += _split(loops, part, name, (begin, end), edges)
        lengths = np.diff(edges)
        state_ns["sleep"] += np.maximum(lengths - sum(state_ns.values()), 0)
        switches = np.histogram(np.concatenate([intervals.times["sync_end_ns"] for intervals in loops]), edges)[0]
        self.append(
            tables.THREAD_STATE_SECONDS,
            len(lengths),
            start_ns=edges[:-1],
            period_s=lengths / SECOND_NS,
            process=number,
            threads=1,
            switches=switches,
            major_faults=0,
            **{f"{name}_ns": ns for name, ns in state_ns.items()},
        )
        return state_ns["run"]

    def _snapshot(self, time_ns: int, cpus: float, others: float) -> None:
        second = (time_ns - BEGIN_NS) / SECOND_NS - 1
        self.cpus(int(second), int(second) + 1, [cpus] * CPUS)
        self.append(
            tables.SNAPSHOTS,
            time_ns=time_ns,
            cpu_percent=round(100 * cpus, 1),
            mem_percent=100 * (1 - _FREE_BYTES / _HOST_BYTES),
            mem_available_bytes=_FREE_BYTES,
            swap_used_bytes=0,
            load_avg=round(1 + others, 2),
            psi_cpu_some_ns=int(min(others, 1) * 0.85 * SECOND_NS),
            psi_memory_some_ns=0,
            psi_memory_full_ns=0,
            psi_io_some_ns=0,
            psi_io_full_ns=0,
            agent_cpu_ns=round(_AGENT_MS * 1e6),
            agent_rss_bytes=_AGENT_BYTES,
        )

    def _gpu_sample(self, time_ns: int, shares: Mapping[int, float]) -> None:
        """Writes a GPU sample as NVML would return it: at most 100% in all, and the share of each process."""
        there = {number: share for number, share in shares.items() if share}
        whole = max(sum(there.values()), 1.0)
        processes = [
            (self._actors[number].pid, _USED_BYTES, round(100 * share / whole), self._actors[number].name)
            for number, share in there.items()
        ]
        self.append(
            tables.GPU_SAMPLES,
            time_ns=time_ns,
            uuid=self.gpu_uuid,
            gpu_index=0,
            gpu_percent=min(round(100 * sum(there.values())), 100),
            sm_clock_mhz=1980,
            max_sm_clock_mhz=1980,
            throttle_reasons=0,
            memory_used_bytes=_USED_BYTES * len(there),
            memory_total_bytes=_GPU_BYTES,
            power_mw=350_000,
            temperature_c=45,
            processes=json.dumps(processes),
        )


def _with_sizes(phase: Phase) -> Phase:
    """The phase with the size of each of its usual copies: equal parts of the bytes of a sync interval."""
    count = round(phase.interval_calls.get("cudaMemcpyAsync", (0, 0))[0])
    if phase.sizes or not count:
        return phase
    return replace(phase, sizes={"cudaMemcpyAsync": phase.step.size_bytes // count})


def _folded(name: str, old: Any, new: Any) -> Any:
    """The value of a column of sums after `new` is added to `old` (None: there is none yet)."""
    if name == "histogram":
        counts = histograms.merge([new])
        return counts if old is None else old + counts
    if old is None:
        return new
    if name == "start_ns":
        return min(old, new)
    return max(old, new) if name in ("max_ns", "period_s") else old + new


_SUMMED: Mapping[str, tuple[str, ...]] = {
    tables.OP_STATS.name: ("start_ns", "process", "source", "op"),
    tables.CALL_SITES.name: ("process", "source", "op"),
    tables.COPIES.name: ("start_ns", "process", "source", "op"),
    tables.KERNEL_LAUNCHES.name: ("start_ns", "process", "function"),
    tables.WAKERS.name: ("start_ns", "process", "waker_kind"),
    tables.CULPRITS.name: ("start_ns", "process", "kind", "culprit_pid", "culprit_name", "culprit_cgroup_id"),
}
_IDLE: dict[str, int] = {f"{name}_ns": 0 for name in STATES if name != "run"}


def _sum(parts: Sequence[Intervals], part: str, name: str) -> Array:
    total: Array = np.sum([intervals.of_part(part)[name] for intervals in parts], axis=0)
    return total


def _by_second(times: Array) -> list[tuple[int, Array]]:
    """The seconds of the recording that hold any of these times, each with the mask of those times."""
    seconds = (times - BEGIN_NS) // SECOND_NS
    return [(int(second), seconds == second) for second in np.unique(seconds)]


def _split(loops: Sequence[Intervals], part: str, name: str, of: tuple[str, str], edges: Array) -> Array:
    """The time (ns) in one thread state by second: spread evenly over the part of the interval that it belongs to."""
    begin, end = (np.concatenate([intervals.times[edge] for intervals in loops]) for edge in of)
    ns = np.concatenate([intervals.of_part(part)[name] for intervals in loops])
    order = np.argsort(begin, kind="stable")
    begin, end, ns = begin[order], np.maximum(end[order], begin[order] + 1), ns[order]
    done = np.concatenate([[0], np.cumsum(ns)])
    times = np.column_stack([begin, end]).ravel() - BEGIN_NS
    level = np.column_stack([done[:-1], done[1:]]).ravel()
    found: Array = np.diff(np.rint(np.interp(edges - BEGIN_NS, times, level)).astype(np.int64))
    return found


def _within(loops: Sequence[Intervals], begin: str, end: str, edges: Array) -> Array:
    """How much (ns) of each second lies between two given edges of the intervals."""
    begins, ends = (np.concatenate([intervals.times[name] for intervals in loops]) for name in (begin, end))
    lows, highs = np.maximum(begins[:, None], edges[None, :-1]), np.minimum(ends[:, None], edges[None, 1:])
    covered: Array = np.maximum(highs - lows, 0).sum(axis=0)
    return covered
