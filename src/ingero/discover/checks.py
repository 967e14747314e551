"""The rows of `ingero check`: one per fact, from facts gathered before. No file is read here."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingero.discover.containers import Placement
from ingero.discover.distribution import this_distribution
from ingero.discover.gpus import Gpu
from ingero.discover.host import library_version
from ingero.discover.interpreters import Interpreter, UnreadableInterpreter
from ingero.discover.kernel import KernelFacts
from ingero.discover.libraries import LibraryCopy, LibraryScan
from ingero.discover.python_walkers import KERNEL_WALKER, Walker, python_text
from ingero.discover.readiness import (
    BTF_FIX,
    HOST_GROUPS,
    LOCKDOWN_FIX,
    PID_NAMESPACE_FIX,
    Readiness,
    absent_text,
    all_groups,
    capability_fix,
    user_namespace_fix,
)
from ingero.program import command
from ingero.units import format_bytes

MIN_DRIVER = 550
_MAX_SHOWN = 8  # pids
_NOT_READ = (
    "libraries deleted since they were loaded are not probed, and Python processes of other users have no lines of code"
)
# Of a process whose control group names no container, which it need not in one with the host's PID namespace.
_ROOTS = {
    True: "in a container that its cgroup does not name, or in a chroot",
    False: "in no container",
    None: "in no container that its cgroup names; the host's own root is not visible",
}


class CheckState(enum.Enum):
    """The state of a row. Only MISSING keeps `trace` from running."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    NOT_HERE = "not here"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One checked fact. section: its heading. fix: the command that fixes it."""

    section: str
    name: str
    state: CheckState
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaProcess:
    """A process that has mapped a traced library.

    interpreter: None where it is no Python. is_left_out: `ingero trace` would leave it out, because of whose it is.
    """

    pid: int
    name: str
    user: str
    interpreter: Interpreter | UnreadableInterpreter | None
    placement: Placement
    is_left_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The NVIDIA driver and its GPUs. version: of the kernel module. reason: why NVML shows no GPU."""

    version: str | None
    gpus: Sequence[Gpu]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """All facts that the rows are made from.

    on_disk: library files in the usual places. agent: rows about what ingero needs installed. walker: who is to read
    the Python frames of a recording. has_own_root: whether ingero's root folder is another one than the machine's;
    None: that cannot be seen. withheld: processes that do not answer; unseen: how many others there was no time for.
    """

    kernel: KernelFacts
    scan: LibraryScan
    on_disk: Sequence[Path]
    gpu: GpuFacts
    processes: Sequence[CudaProcess]
    placement: Placement
    runtimes: Sequence[str]
    orchestrators: Sequence[str]
    agent: Sequence[CheckRow]
    walker: Walker = KERNEL_WALKER
    has_own_root: bool | None = False
    withheld: Sequence[int] = ()
    unseen: int = 0


def row_of(fields: Mapping[str, Any]) -> CheckRow:
    """A row from its JSON form."""
    fix = fields["fix"] or ""
    return CheckRow(
        section=fields["section"],
        name=fields["name"],
        state=CheckState(fields["state"]),
        found=fields["found"],
        fix=fix,
    )


def all_rows(facts: CheckFacts) -> tuple[CheckRow, ...]:
    """All rows, in the order shown."""
    kernel = facts.kernel
    return (
        *_kernel_rows(kernel),
        *_privilege_rows(kernel),
        *facts.agent,
        *_gpu_rows(facts.gpu),
        *_library_rows(facts.scan, facts.on_disk),
        *_process_rows(facts.processes, facts.walker),
        *_unanswered_rows(facts),
        *_container_rows(facts),
        *_probe_rows(facts),
    )


def is_ready(rows: Sequence[CheckRow]) -> bool:
    """Whether `trace` can run."""
    return all(row.state is not CheckState.MISSING for row in rows)


def _row(section: str, name: str, state: CheckState, found: str, fix: str = "") -> CheckRow:
    return CheckRow(section=section, name=name, state=state, found=found, fix="" if state is CheckState.OK else fix)


def _needed(section: str, name: str, is_there: bool, found: str, fix: str) -> CheckRow:
    """A row without which nothing can be traced."""
    return _row(section, name, CheckState.OK if is_there else CheckState.MISSING, found, fix)


def _kernel_rows(kernel: KernelFacts) -> Iterator[CheckRow]:
    is_lacking = kernel.has_btf and bool(kernel.absent)
    found = f"{kernel.release} on {kernel.architecture}" + (f": lacks {absent_text(kernel)}" if is_lacking else "")
    yield _needed("kernel", "Linux", not is_lacking, found, this_distribution().kernel_fix)
    found = "BTF there" if kernel.has_btf else "no BTF: /sys/kernel/btf/vmlinux"
    yield _needed("kernel", "type information", kernel.has_btf, found, BTF_FIX)
    yield _needed("kernel", "kind of probe", bool(kernel.features), _probe_kind(kernel), BTF_FIX)
    if kernel.lockdown is None:
        yield _row("kernel", "lockdown", CheckState.NOT_HERE, "this kernel has no lockdown")
    else:
        yield _needed("kernel", "lockdown", kernel.lockdown != "confidentiality", kernel.lockdown, LOCKDOWN_FIX)
    if kernel.bpf_stats_enabled:
        fix = "sudo sysctl kernel.bpf_stats_enabled=0"
        yield _row("kernel", "BPF statistics", CheckState.WARNING, "on: each BPF program run costs 55 ns more", fix)


def _probe_kind(kernel: KernelFacts) -> str:
    if "uprobe_session" in kernel.features:
        return "uprobe.session (Linux 6.13)"
    if "uprobe_multi" in kernel.features:
        return "uprobe.multi (Linux 6.6)"
    return "perf events, which need CAP_SYS_ADMIN" if kernel.features else "unknown without BTF"


def _privilege_rows(kernel: KernelFacts) -> Iterator[CheckRow]:
    section = "privileges"
    needed = ("BPF", "PERFMON", "SYS_PTRACE", *(() if "uprobe_multi" in kernel.features else ("SYS_ADMIN",)))
    missing = set(kernel.lacks(*needed))
    for name in needed:
        found = "held" if name not in missing else "not held"
        yield _needed(section, f"CAP_{name}", name not in missing, found, capability_fix(kernel, (name,)))
    for name in ("CHECKPOINT_RESTORE", "DAC_READ_SEARCH"):  # each is of no use without the other
        is_held = not kernel.lacks(name)
        found = "held" if is_held else f"not held: {_NOT_READ}"
        state = CheckState.OK if is_held else CheckState.WARNING
        yield _row(section, f"CAP_{name}", state, found, capability_fix(kernel, (name,)))
    found = "the host's own" if kernel.is_init_pid_namespace else "a container's own"
    yield _needed(section, "PID namespace", kernel.is_init_pid_namespace, found, PID_NAMESPACE_FIX)
    if kernel.unknown_time:
        yield _row(section, "time namespace", CheckState.MISSING, *kernel.unknown_time)
    if not kernel.is_init_user_namespace:
        yield _row(section, "user namespace", CheckState.MISSING, "a rootless container's", user_namespace_fix())
    if kernel.confinement:
        found = f"{kernel.confinement.text}: it may forbid what the capabilities allow"
        yield _row(section, "confinement", CheckState.WARNING, found, kernel.confinement.fix)
    yield _ptrace_scope(kernel.ptrace_scope)
    yield _perf_event_paranoid(kernel)


def _ptrace_scope(scope: int | None) -> CheckRow:
    if scope is None:
        return _row("privileges", "ptrace_scope", CheckState.NOT_HERE, "this kernel has no Yama")
    # Yama judges PTRACE_MODE_ATTACH only (security/yama/yama_lsm.c); maps, environ and map_files need MODE_READ.
    return _row("privileges", "ptrace_scope", CheckState.OK, f"{scope}: fine, ingero attaches to no process")


def _perf_event_paranoid(kernel: KernelFacts) -> CheckRow:
    value = kernel.perf_event_paranoid
    if value is None:
        return _row("privileges", "perf_event_paranoid", CheckState.NOT_HERE, "this kernel has no perf events")
    if "uprobe_multi" in kernel.features:
        return _row("privileges", "perf_event_paranoid", CheckState.OK, f"{value}: fine, perf events are not used")
    # Perf-event uprobes need CAP_SYS_ADMIN, which stands above this switch.
    fix = capability_fix(kernel, ("SYS_ADMIN",))
    return _needed("privileges", "perf_event_paranoid", not kernel.lacks("SYS_ADMIN"), str(value), fix)


def _gpu_rows(gpu: GpuFacts) -> Iterator[CheckRow]:
    driver_fix = this_distribution().driver_fix(MIN_DRIVER)
    if gpu.version is None:
        yield _row("GPU", "NVIDIA driver", CheckState.NOT_HERE, gpu.reason or "not loaded", driver_fix)
        return
    major = gpu.version.split(".", maxsplit=1)[0]
    is_old = major.isdecimal() and int(major) < MIN_DRIVER
    found = f"{gpu.version}" + (f": older than {MIN_DRIVER}, not tried" if is_old else "")
    state = CheckState.WARNING if is_old else CheckState.OK
    yield _row("GPU", "NVIDIA driver", state, found, driver_fix if is_old else "")
    for listed_gpu in gpu.gpus:
        yield _row(
            "GPU",
            f"GPU {listed_gpu.index}",
            CheckState.OK,
            f"{listed_gpu.name}, {format_bytes(listed_gpu.memory_bytes)}, {listed_gpu.uuid}",
        )
    if not gpu.gpus:
        yield _row("GPU", "GPUs", CheckState.WARNING, gpu.reason, "nvidia-smi -L")


def _library_rows(scan: LibraryScan, on_disk: Sequence[Path]) -> Iterator[CheckRow]:
    for copy in scan.copies:
        version = ".".join(map(str, library_version(copy.file)))
        users = f"{len(copy.pids)} process{'' if len(copy.pids) == 1 else 'es'}"
        yield _row("libraries", _copy_name(copy, version), CheckState.OK, f"{copy.mapped_path}, {users}")
    problems = {(library.mapped_path, library.reason): library for library in scan.unreadable}
    for library in problems.values():
        fix = library.hint or (command("check", as_root=True) if "not permitted" in library.reason else "")
        yield _row(
            "libraries",
            Path(library.mapped_path).name,
            CheckState.WARNING,
            f"{library.mapped_path}: {library.reason}",
            fix,
        )
    mapped = {copy.file.path for copy in scan.copies}
    for path in on_disk:
        if path not in mapped:
            yield _row("libraries", path.name, CheckState.OK, f"{path}, not in use")
    if not scan.copies and not on_disk:
        yield _row(
            "libraries",
            "CUDA and NCCL",
            CheckState.NOT_HERE,
            "no copy in the usual places, and no process has loaded one",
        )


def _copy_name(copy: LibraryCopy, version: str) -> str:
    return f"{copy.file.library.value} {version}".rstrip()


def _process_rows(processes: Sequence[CudaProcess], walker: Walker) -> Iterator[CheckRow]:
    for process in processes:
        parts = [process.name, f"of {process.user}", python_text(process.interpreter, walker)]
        parts += [text for text in (_place(process.placement),) if text]
        parts += ["not traced unless asked for"] if process.is_left_out else []
        is_odd = process.is_left_out or isinstance(process.interpreter, UnreadableInterpreter)
        fix = command("trace", "--user", "all", as_root=True) if process.is_left_out else ""
        yield _row(
            "processes", f"pid {process.pid}", CheckState.WARNING if is_odd else CheckState.OK, ", ".join(parts), fix
        )
    if not processes:
        yield _row("processes", "CUDA processes", CheckState.NOT_HERE, "none is running now; trace waits for one")


def _unanswered_rows(facts: CheckFacts) -> Iterator[CheckRow]:
    """Rows of processes that did not answer whether they use CUDA."""
    if facts.withheld:
        shown = ", ".join(map(str, facts.withheld[:_MAX_SHOWN]))
        more = f" and {len(facts.withheld) - _MAX_SHOWN} more" if len(facts.withheld) > _MAX_SHOWN else ""
        found = (
            f"pid {shown}{more}: whether they use CUDA cannot be seen; they wait for a file system, or were made to "
            "wait: ps hangs at them, too"
        )
        fix = "end them, or unmount the file system that does not answer; trace records all others meanwhile"
        yield _row("processes", "memory withheld", CheckState.WARNING, found, fix)
    if facts.unseen:
        found = f"{facts.unseen}, because reading their files takes too long; trace comes to them later"
        yield _row("processes", "not checked", CheckState.WARNING, found)


def _place(place: Placement) -> str:
    if place.container_id:
        by = f" by {place.orchestrator}" if place.orchestrator not in (None, place.runtime) else ""
        return f"{place.runtime} container {place.container_id[:12]}{by}"
    return f"Slurm job {place.job}" if place.job else ""


def _container_rows(facts: CheckFacts) -> Iterator[CheckRow]:
    yield _row("containers", "ingero itself", CheckState.OK, _place(facts.placement) or _ROOTS[facts.has_own_root])
    for name, found in (("runtimes", facts.runtimes), ("orchestrators", facts.orchestrators)):
        yield _row(
            "containers", name, CheckState.OK if found else CheckState.NOT_HERE, ", ".join(found) or "none found"
        )


def _probe_rows(facts: CheckFacts) -> Iterator[CheckRow]:
    """Rows of the probe groups; one that lacks a required installation says so: trace would not run either."""
    absent = next((row for row in facts.agent if row.state is CheckState.MISSING), None)
    for group in all_groups(facts.kernel, facts.scan):
        if group.ok and absent is not None:
            state = CheckState.MISSING if group.is_required else CheckState.WARNING
            yield _row("probes", group.group, state, f"{absent.name} is missing", absent.fix)
        else:
            yield _probe_row(group)


def _probe_row(group: Readiness) -> CheckRow:
    name = group.group
    if group.ok:
        state = CheckState.WARNING if group.fix or (group.reason and group.group in HOST_GROUPS) else CheckState.OK
        return _row("probes", name, state, group.reason or "can run", group.fix)
    return _row(
        "probes", name, CheckState.MISSING if group.is_required else CheckState.WARNING, group.reason, group.fix
    )
