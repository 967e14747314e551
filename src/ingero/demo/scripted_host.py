"""Writes the host for a script: kernel events, off-CPU intervals, thread states, culprits, CPUs and GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from ingero.demo.scripted_recording import ScriptedRecording
from ingero.demo.scripted_steps import Actor, ns_of
from ingero.events import STATES, THREAD_STATES, WAKER_KINDS
from ingero.ops import HostOp, IoOp, NetOp, Source, TcpOp
from ingero.store.records import HaltLevel
from ingero.store.vocabulary import CulpritKind
from ingero.store.writing import tables
from ingero.store.writing.tables import Value
from ingero.units import SECOND_NS


class ScriptedHost(ScriptedRecording):
    """The part of a scripted run that writes what happens on the host."""

    def host_event(
        self,
        kind: HostOp | IoOp | TcpOp | NetOp,
        at_s: float,
        *,
        actor: Actor | None = None,
        ms: float = 0,
        **columns: Value,
    ) -> None:
        """Writes one kernel event."""
        sources = {HostOp: Source.HOST, IoOp: Source.IO, TcpOp: Source.TCP, NetOp: Source.NET}
        known: dict[str, Value] = {"process": actor.number if actor else 0, "pid": actor.pid if actor else 0}
        known |= {"tid": known["pid"], "source": int(sources[type(kind)]), "op": int(kind)}
        known |= {"start_ns": self.at(at_s), "duration_ns": ns_of(ms)}
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
        call: int = 0,
    ) -> None:
        """Writes an off-CPU interval of a thread (default: the main one); a sleep ends at woken_s (default: end_s).

        stack: where the thread went to sleep, as in `sample`. call: `events.SENDS` and so on.
        """
        begin, end = self.at(begin_s), self.at(end_s)
        known: dict[str, Value] = {"start_ns": begin, "duration_ns": end - begin, "state": THREAD_STATES.index(state)}
        known |= {"process": actor.number, "pid": actor.pid, "tid": tid or actor.pid, "comm": self.text(actor.name)}
        known |= {
            "cpu": cpu,
            "futex": call or futex,
            "stack_hash": self.stack(stack) if stack else 0,
        }
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
            waker_columns = {name: value for name, value in known.items() if name.startswith("waker_")}
            place: dict[str, Value] = {"start_ns": begin, "process": actor.number, "count": 1, "sleep_ns": end - begin}
            self.append(tables.WAKERS, **(waker_columns | place))

    def second(self, actor: Actor, at_s: float, *, major_faults: int = 0, **states_ms: float) -> None:
        """Writes the thread-state time of a process in one second: ms by name of STATES; the rest is sleep."""
        state_ns = {name: ns_of(states_ms.get(name, 0)) for name in STATES}
        state_ns["sleep"] = max(state_ns["sleep"], SECOND_NS - sum(state_ns.values()))
        columns: dict[str, Value] = {f"{name}_ns": ns for name, ns in state_ns.items()}
        columns |= {"start_ns": self.at(at_s), "process": actor.number, "threads": 1, "major_faults": major_faults}
        self.append(tables.THREAD_STATE_SECONDS, **columns)

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
        """Writes a stack sample of a thread (default: the main one) outside any call; the stack is as in `stack`."""
        known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": tid or actor.pid}
        known |= {"time_ns": self.at(at_s), "state": THREAD_STATES.index(state), "weight_ns": ns_of(ms)}
        self.append(
            tables.SAMPLES, is_collecting=int(is_collecting), stack_hash=self.stack(stack, native=native), **known
        )

    def culprit(
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
        """Writes for how many ms of one second a process ran while the affected process was runnable."""
        self.append(
            tables.CULPRITS,
            start_ns=self.at(at_s),
            process=affected.number,
            kind=int(kind),
            culprit_pid=pid,
            culprit_name=self.text(name),
            culprit_cgroup_id=cgroup_id,
            ns=ns_of(ms),
            switches=switches,
        )

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
        """Writes a process whose main thread waits at the end of each second from since_s to until_s.

        above: the halted process that waits for this one. owners: the processes that could end the wait, with the
        letter of their state. is_counted: its thread-state time is written as well.
        """
        known: dict[str, Value] = {"process": actor.number, "pid": actor.pid, "tid": actor.pid, "state": "S"}
        known |= {"halted": (above or actor).number, "depth": int(above is not None), "name": self.text(actor.name)}
        known |= {"kind": kind, "level": int(level), "syscall": kind, "since_ns": self.at(since_s)}
        known["owners"] = json.dumps([[owner.pid, owner.name, state] for owner, state in owners])
        for second in range(int(since_s) + 1, int(until_s)):
            self.append(tables.HALTS, time_ns=self.at(second + 0.9), **(known | columns))
            if is_counted:
                self.second(actor, second)

    def scheduling(self, pid: int, at_s: float = 0, *, process: int = 0, **columns: Value) -> None:
        """Writes the scheduling settings of a process's main thread from at_s on; columns replace the defaults."""
        defaults: dict[str, Value] = {"nice": 0, "policy": "other", "cpus_allowed": "0-3"}
        place: dict[str, Value] = {"time_ns": self.at(at_s), "process": process, "pid": pid, "tid": pid}
        self.append(tables.SCHEDULING, **(defaults | place | columns))

    def cpus(self, begin_s: int, end_s: int, busy: Sequence[float], *, steal: float = 0.0) -> None:
        """Writes how busy each CPU was in each second, and the steal time of each (both as ratios)."""
        ticks = [
            [cpu, round(100 * share), round(100 * (1 - share - steal)), 0, 0, round(100 * steal)]
            for cpu, share in enumerate(busy)
        ]
        for second in range(begin_s, end_s):
            columns: dict[str, Value] = {"time_ns": self.at(second + 1), "cpus": json.dumps(ticks)}
            self.append(tables.CPU_SECONDS, elapsed_ns=SECOND_NS, tick_ns=SECOND_NS // 100, **columns)

    def numa(self, *nodes: tuple[str, Sequence[str]]) -> None:
        """Writes NUMA nodes, numbered from 0, each with its CPUs and GPUs (uuid)."""
        for node, (cpus, gpus) in enumerate(nodes):
            self.append(tables.NUMA_NODES, numa_node=node, cpus=cpus, gpus=json.dumps(list(gpus)))

    def agent(self, begin_s: int, end_s: int, ms: float) -> None:
        """Writes the CPU time (ms) that the recorder itself used in each second."""
        for second in range(begin_s, end_s):
            self.append(tables.SNAPSHOTS, time_ns=self.at(second + 1), agent_cpu_ns=ns_of(ms))

    def uses_gpu(self, actor: Actor, uuid: str = "GPU-0") -> None:
        """Writes that the driver has seen a process on this GPU only."""
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
        """Writes one sample of NVML. processes: (pid, bytes); link: PCIe generation and lanes."""
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
