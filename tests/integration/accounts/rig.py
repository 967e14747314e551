"""Loads only the scheduler programs and reads their maps, for tests and benches of thread-state time."""

from __future__ import annotations

import mmap
import os
import platform
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.kernel_constants import scheduler_constants
from ingero.attach.libbpf import BpfObject, Map, Program, possible_cpus
from ingero.decode.btf import btf_of

OBJECTS = Path(__file__).resolve().parents[3] / "src" / "ingero" / "bpf" / "objects" / platform.machine()
WORKLOAD_SOURCE = Path(__file__).with_name("workload.c")
ACCOUNT_PROGRAMS = ("sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new", "sched_migrate_task")
BIRTH_PROGRAMS = ("sched_process_fork", "sched_process_exec", "sched_process_exit")
MARKER_PROGRAMS = (
    *("softirq_entry", "softirq_exit", "irq_handler_entry", "irq_handler_exit"),
    *("hrtimer_expire_entry", "hrtimer_expire_exit"),
)
ALL_PROGRAMS = (*ACCOUNT_PROGRAMS, *BIRTH_PROGRAMS, *MARKER_PROGRAMS)
STATES = ("run", "runq", "throttled", "yielded", "sleep", "io", "uninterruptible", "stopped")
_RING_BUSY, _RING_DISCARD, _RING_HEADER_BYTES = 1 << 31, 1 << 30, 8
_INIT, _SLEEP = 0, 5  # of `enum thread_state`: not seen to do anything yet; the first of the sleeps
_DUMP_TRIES = 20  # a virtual CPU may be taken away in the middle of a change
_LAYOUTS = btf_of(OBJECTS / "layouts.bpf.o") if (OBJECTS / "layouts.bpf.o").exists() else None


def layout(name: str) -> np.dtype[Any]:
    """The numpy layout of a struct of events.h."""
    assert _LAYOUTS is not None, "the BPF objects are not built"
    return _LAYOUTS.dtype(name)


def names_of(enum: str, prefix: str) -> dict[int, str]:
    """Values of an enum of events.h to their names, in lower case and without the prefix."""
    assert _LAYOUTS is not None, "the BPF objects are not built"
    return {value: name.removeprefix(prefix).lower() for name, value in _LAYOUTS.enum(enum).items()}


def _start_boottime_ns(pid: int) -> int:
    """The start of a process by CLOCK_BOOTTIME, to a clock tick, as the agent reads it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Ring:
    """Reads all records of a BPF ring buffer that is mapped into memory."""

    def __init__(self, ring: Map) -> None:
        page, self._mask = mmap.PAGESIZE, ring.max_entries - 1
        self._consumer = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._data = mmap.mmap(ring.fd, page + 2 * ring.max_entries, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def read(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The records that came since the last call, in the layout of struct `name`."""
        kind, parts = layout(name), []
        at = struct.unpack_from("<Q", self._consumer)[0]
        while at < struct.unpack_from("<Q", self._data)[0]:
            start = mmap.PAGESIZE + (at & self._mask)
            header = struct.unpack_from("<I", self._data, start)[0]
            if header & _RING_BUSY:
                break
            size = header & ~_RING_DISCARD
            if not header & _RING_DISCARD:
                parts.append(self._data[start + _RING_HEADER_BYTES : start + _RING_HEADER_BYTES + kind.itemsize])
            at += (size + _RING_HEADER_BYTES + 7) & ~7
        struct.pack_into("<Q", self._consumer, 0, at)
        return np.frombuffer(b"".join(parts), kind)


@dataclass(frozen=True, slots=True)
class Culprit:
    """A process that ran while traced threads were runnable."""

    pid: int
    is_after_yield: bool
    comm: str
    ns: int
    cgroup_id: int


Culprits = dict[tuple[int, bool], Culprit]


class SchedulerPrograms:
    """The scheduler programs, attached; closing detaches them.

    Args:
        programs: those to attach, in this order; the iterators are always loaded.
        drop_every: ignore each N-th event of tracked threads, as if it had been lost; 0 = none.
        slots: process slots that forked children may take.
    """

    def __init__(self, programs: Sequence[str] = ALL_PROGRAMS, *, drop_every: int = 0, slots: int = 256) -> None:
        self._stack = ExitStack()
        constants = scheduler_constants() | {"drop_every": struct.pack("<I", drop_every)}
        self.bpf = self._stack.enter_context(
            BpfObject(OBJECTS / "scheduler.bpf.o", constants=constants, max_entries={"cpus": possible_cpus()})
        )
        self.maps = self.bpf.maps
        for slot in reversed(range(slots)):
            self.maps["free_slots"].update(b"", struct.pack("<I", slot))
        self.rings = {name: Ring(self.maps[name]) for name in ("lifecycle", "offcpu")}
        self._links = [self.bpf.program(name).attach() for name in programs]

    def __enter__(self) -> SchedulerPrograms:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in reversed(self._links):
            link.close()
        self._stack.close()

    def program(self, name: str) -> Program:
        """A loaded program by its name."""
        return self.bpf.program(name)

    def track(self, pid: int) -> int:
        """Traces a process with all of its threads; returns its slot."""
        key, slot = struct.pack("<I", pid), self._take_slot()
        process = np.zeros(1, layout("process"))
        process["pid"] = pid
        process["start_boottime_ns"] = _start_boottime_ns(pid)
        self.maps["processes"].update(struct.pack("<I", slot), process.tobytes())
        for name in ("targets", "enrolling"):
            self.maps[name].update(key, struct.pack("<I", slot))
        self.program("enroll_threads").read_iterator()
        self.maps["enrolling"].delete(key)
        return slot

    def _take_slot(self) -> int:
        used = {struct.unpack("<I", slot)[0] for _, slot in self.maps["targets"].items()}
        return next(slot for slot in range(255, -1, -1) if slot not in used)  # children take them from 0 on

    def dump(self, pid: int | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """A struct thread_dump for each tracked thread (of one process); retries while a thread is being updated."""
        for _ in range(_DUMP_TRIES):
            data = self.program("dump_threads").read_iterator()
            rows: np.ndarray[Any, np.dtype[Any]] = np.frombuffer(data, layout("thread_dump"))
            chosen: np.ndarray[Any, np.dtype[Any]] = rows if pid is None else rows[rows["pid"] == pid]
            if not np.any(chosen["is_unreadable"]):
                return chosen
        raise AssertionError("an account was changing each time it was read")

    def process(self, slot: int) -> Any:
        """The struct process of one slot, a numpy record."""
        data = self.maps["processes"].lookup(struct.pack("<I", slot))
        return np.frombuffer(data or b"", layout("process"))[0]

    def drops(self) -> dict[str, int]:
        """Counters that are not zero, by name."""
        names = names_of("drop", "DROP_")
        counters = {index: self.maps["drops"].lookup(struct.pack("<I", index)) or b"" for index in names}
        found = {names[index]: struct.unpack("<Q", data)[0] for index, data in counters.items() if data}
        return {name: value for name, value in found.items() if value}

    def culprit_sum_ns(self) -> int:
        """All run-queue time of all affected processes that is attributed, or counted as unattributed."""
        keys, values = layout("culprit_key"), layout("culprit_value")
        entries = list(self.maps["culprits"].items())
        after_yield = np.frombuffer(b"".join(key for key, _ in entries), keys)["yielded"] != 0
        attributed_ns = np.frombuffer(b"".join(value for _, value in entries), values)["ns"]
        return int(attributed_ns[~after_yield].sum()) + self.drops().get("culprit_unknown_ns", 0)

    def culprits(self, slot: int) -> Culprits:
        """The culprits of one slot by (culprit's pid, whether the wait followed sched_yield)."""
        return _culprits_of(slot, list(self.maps["culprits"].items()))


def _culprits_of(slot: int, entries: list[tuple[bytes, bytes]]) -> Culprits:
    keys = np.frombuffer(b"".join(key for key, _ in entries), layout("culprit_key"))
    values = np.frombuffer(b"".join(value for _, value in entries), layout("culprit_value"))
    found: Culprits = {}
    for key, value in zip(keys, values, strict=True):
        if key["process_slot"] == slot:
            pid, is_after_yield = int(key["culprit_pid"]), bool(key["yielded"])
            name, cgroup = value["comm"].decode(), int(value["cgroup_id"])
            found[pid, is_after_yield] = Culprit(pid, is_after_yield, name, int(value["ns"]), cgroup)
    return found


_PER_THREAD = (
    *("elapsed_ns", "states_ns", "exec_ns", "delay_ns", "has_right_delay"),
    *("age_residual_ns", "switches", "switches_ahead", "flaws"),
)


@dataclass(frozen=True, slots=True)
class Window:
    """The changes of one process between two readings. Times in ns, arrays by thread."""

    tids: list[int]
    comms: list[str]
    elapsed_ns: np.ndarray[Any, Any]
    states_ns: np.ndarray[Any, Any]  # (threads, 8)
    exec_ns: np.ndarray[Any, Any]  # the kernel's sum_exec_runtime
    delay_ns: np.ndarray[Any, Any]  # the kernel's run_delay, waits that still last included
    has_right_delay: np.ndarray[Any, Any]  # False: sleep may be part of it, see _is_right
    age_residual_ns: np.ndarray[Any, Any]  # since the account began, at the end of the window
    switches: np.ndarray[Any, Any]  # switch-outs seen
    switches_ahead: np.ndarray[Any, Any]  # nvcsw + nivcsw less the switch-outs seen, since the account began
    flaws: np.ndarray[Any, Any]
    drops: dict[str, int]
    culprits: Culprits
    unattributed_ns: int  # growth of the waits of threads that were not seen to begin to wait: charged once they run
    reading_ns: int = 0  # between reading culprits and clocks, both times: what was waited then is in one of them only

    def state_ns(self, name: str) -> int:
        """The time in one state, summed over the threads."""
        return int(self.states_ns[:, STATES.index(name)].sum())

    def only(self, comm: str) -> Window:
        """The part about the threads of one name; drops and culprits stay those of the whole."""
        return self._part([name == comm for name in self.comms])

    def with_right_delay(self) -> Window:
        """The part about the threads whose run_delay the kernel counts correctly."""
        return self._part(self.has_right_delay.tolist())

    def _part(self, is_chosen: list[bool]) -> Window:
        chosen = [index for index, is_one in enumerate(is_chosen) if is_one]
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in _PER_THREAD}
        tids, comms = ([of_all[index] for index in chosen] for of_all in (self.tids, self.comms))
        return replace(self, tids=tids, comms=comms, **arrays)

    @property
    def waited_ns(self) -> int:
        """Time that the threads were runnable without running, whatever the reason."""
        return sum(self.state_ns(name) for name in ("runq", "throttled", "yielded"))

    @property
    def attributed_ns(self) -> int:
        """Run-queue time that is attributed to a culprit, or counted as unattributed."""
        charged = sum(culprit.ns for culprit in self.culprits.values() if not culprit.is_after_yield)
        return charged + self.drops.get("culprit_unknown_ns", 0)

    def line(self, title: str) -> str:
        """A line of a table."""
        used = {name: self.state_ns(name) / 1e9 for name in STATES if self.state_ns(name)}
        clocks = " ".join(f"{name}={seconds:.3f}" for name, seconds in used.items())
        run = self.state_ns("run") / max(int(self.exec_ns.sum()), 1)
        return (
            f"{title:<24} threads={len(self.tids)} switches={int(self.switches.sum())} {clocks} | "
            f"residual={int(np.abs(self.age_residual_ns).max(initial=0))}ns run/exec={run:.4f} "
            f"wait/run_delay={self.waited_ns / max(int(self.delay_ns.sum()), 1):.4f} "
            f"charged/runq={self.attributed_ns / max(self.state_ns('runq'), 1):.4f} drops={self.drops}"
        )


def _difference(before: dict[Any, int], after: dict[Any, int]) -> dict[Any, int]:
    return {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}


@dataclass(frozen=True, slots=True)
class _Reading:
    drops: dict[str, int]
    culprits: list[tuple[bytes, bytes]]
    threads: np.ndarray[Any, np.dtype[Any]]
    duration_ns: int


@contextmanager
def undisturbed() -> Iterator[None]:
    """Runs its body before all ordinary threads, so that two things read one after the other belong together.

    What the body starts is ordinary again.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def _read(scheduler: SchedulerPrograms, pid: int) -> _Reading:
    with undisturbed():
        begin_ns = time.monotonic_ns()
        drops, culprits, threads = scheduler.drops(), list(scheduler.maps["culprits"].items()), scheduler.dump(pid)
        return _Reading(drops, culprits, threads, time.monotonic_ns() - begin_ns)


@contextmanager
def window(scheduler: SchedulerPrograms, pid: int, slot: int) -> Iterator[list[Window]]:
    """Reads before and after its body; then the list holds the changes as its only element."""
    result: list[Window] = []
    before = _read(scheduler, pid)
    yield result
    after = _read(scheduler, pid)
    _, first, last = np.intersect1d(before.threads["tid"], after.threads["tid"], return_indices=True)
    old, new = before.threads[first], after.threads[last]
    lead_ns = min(_clock_lead_ns(old), _clock_lead_ns(new))
    kernel = (new["voluntary_switches"] + new["involuntary_switches"]).astype(np.int64)
    ahead = kernel - new["switch_base"].astype(np.int64) - new["switches"].astype(np.int64)
    age = (new["now_ns"] - new["created_ns"]).astype(np.int64)
    result.append(
        Window(
            tids=new["tid"].tolist(),
            comms=[comm.decode() for comm in new["comm"]],
            elapsed_ns=(new["now_ns"] - old["now_ns"]).astype(np.int64),
            states_ns=new["state_ns"].astype(np.int64) - old["state_ns"].astype(np.int64),
            exec_ns=(new["sum_exec_ns"] - old["sum_exec_ns"]).astype(np.int64),
            delay_ns=_delay_ns(new, lead_ns) - _delay_ns(old, lead_ns),
            has_right_delay=_is_right(old, new),
            age_residual_ns=age - new["state_ns"].astype(np.int64).sum(axis=1),
            switches=(new["switches"] - old["switches"]).astype(np.int64),
            switches_ahead=np.where(new["switches"] > 0, ahead, 0),
            flaws=(new["flaws"] - old["flaws"]).astype(np.int64),
            drops=_difference(before.drops, after.drops),
            culprits=_grown(_culprits_of(slot, before.culprits), _culprits_of(slot, after.culprits)),
            unattributed_ns=_unseen_wait_ns(after.threads) - _unseen_wait_ns(before.threads),
            reading_ns=before.duration_ns + after.duration_ns,
        )
    )


def _clock_lead_ns(rows: np.ndarray[Any, np.dtype[Any]]) -> int:
    """How far the programs' clock is ahead of the run queues' clocks, which are updated at switches and ticks only."""
    return int((rows["now_ns"] - rows["queue_clock_ns"]).astype(np.int64).min())


def _delay_ns(rows: np.ndarray[Any, np.dtype[Any]], lead_ns: int) -> np.ndarray[Any, Any]:
    """The kernel's run_delay including waits in progress, which may be older than the tracing of their thread."""
    lasts_ns = rows["now_ns"].astype(np.int64) - lead_ns - rows["queued_ns"].astype(np.int64)
    delay_ns: np.ndarray[Any, Any] = rows["run_delay_ns"].astype(np.int64)
    return delay_ns + np.where(rows["queued_ns"] > 0, lasts_ns, 0)


def _unseen_wait_ns(rows: np.ndarray[Any, np.dtype[Any]]) -> int:
    return int(rows["state_ns"][rows["state"] == _INIT, STATES.index("runq")].sum())


def _is_right(old: np.ndarray[Any, np.dtype[Any]], new: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, Any]:
    """Whether the kernel's run_delay contains no sleep.

    Since 6.12 a thread that sleeps may stay queued for a while. If it is moved to another CPU then, the kernel counts
    from there on until it runs again.
    """
    state, waited_ns = old["state"], old["state_ns"][:, STATES.index("runq") : STATES.index("sleep")].sum(axis=1)
    is_asleep = (state >= _SLEEP) | ((state == _INIT) & (waited_ns == 0))
    right: np.ndarray[Any, Any] = (old["moves_asleep"] == new["moves_asleep"]) & ~(is_asleep & (old["queued_ns"] > 0))
    return right


def _grown(before: Culprits, after: Culprits) -> Culprits:
    grown = {
        key: replace(culprit, ns=culprit.ns - (before[key].ns if key in before else 0))
        for key, culprit in after.items()
    }
    return {key: culprit for key, culprit in grown.items() if culprit.ns}


def build_workload(folder: Path) -> Path:
    """Compiles the workload program; returns its path."""
    program = folder / "workload"
    subprocess.run(["gcc", "-O2", "-pthread", str(WORKLOAD_SOURCE), "-o", str(program)], check=True)
    return program


class Workload:
    """A running workload; leaving the block kills it."""

    def __init__(self, program: Path, *arguments: str | int, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, str(program), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def __enter__(self) -> Workload:
        self._line("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self, wanted: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert not wanted or line == wanted, f"{self._process.args!r}: said {line!r}, not {wanted!r}"
        return line

    def end(self) -> tuple[int, int]:
        """Ends it politely; returns (units of work done, CPU time in ns)."""
        self._process.send_signal(signal.SIGTERM)
        work, cpu_ns = self._line().split()
        self._process.wait()
        return int(work), int(cpu_ns)

    def go(self) -> None:
        """Starts modes that wait until they are traced."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        self._process.send_signal(number)


def measure(seconds: float) -> None:
    """Lets a workload run for the length of a measurement."""
    time.sleep(seconds)
