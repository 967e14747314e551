"""Says of each group of probes whether it can run here, why not, and which command mends it.

`check` and `trace` ask these very functions, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingero.discover.kernel import MIN_RELEASE, KernelFacts
from ingero.discover.libraries import LibraryScan
from ingero.ops import Library

_BTF_FIX = "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (the distributions' own kernels are, since 2021)"
_KERNEL_FIX = "upgrade the kernel: sudo apt install linux-image-generic (or your distribution's current kernel)"
_ROOT_FIX = "run it as root: sudo ingero ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether one group of probes can run.

    reason: why not; with `ok` something worth knowing, or empty.
    fix: the command that mends it; empty where nothing can or need be done.
    """

    group: str
    ok: bool
    reason: str = ""
    fix: str = ""


def all_groups(kernel: KernelFacts, scan: LibraryScan) -> tuple[Readiness, ...]:
    """Every group, in the order in which they are shown."""
    calls = tuple(call_probes(kernel, scan, library) for library in Library)
    return (*calls, scheduler_clocks(kernel), host_events(kernel), python_frames(kernel))


def call_probes(kernel: KernelFacts, scan: LibraryScan, library: Library) -> Readiness:
    """Probes on the calls of one library."""
    group = f"calls of {library.value}"
    blocked = _bpf(group, kernel)
    if blocked is not None:
        return blocked
    if "uprobe_multi" not in kernel.features and "SYS_ADMIN" not in kernel.capabilities:
        return Readiness(
            group=group,
            ok=False,
            reason=f"Linux {kernel.release} has no multi-uprobes (6.6); the older kind needs CAP_SYS_ADMIN",
            fix=_ROOT_FIX,
        )
    missing = kernel.lacks("SYS_PTRACE")
    if missing:
        return _no_capability(group, missing, "to see other users' processes")
    return Readiness(group=group, ok=True, reason=_library_note(scan, library))


def scheduler_clocks(kernel: KernelFacts) -> Readiness:
    """The clocks of every traced thread: on-CPU, runnable, asleep."""
    group = "scheduler clocks"
    readiness = _bpf(group, kernel) or _needs_features(group, kernel, ("sched_switch", "sched_waking"))
    if readiness.ok and kernel.bpf_stats_enabled:
        # Measured: 437 ns a probe without, 498 ns with it (Linux 6.18).
        reason = "kernel.bpf_stats_enabled is on: every BPF program run costs about 55 ns more"
        return Readiness(group=group, ok=True, reason=reason, fix="sudo sysctl kernel.bpf_stats_enabled=0")
    return readiness


def host_events(kernel: KernelFacts) -> Readiness:
    """Block I/O, memory, TCP and process events."""
    group = "host events"
    wanted = ("block_rq_issue", "tcp_retransmit_skb", "mm_page_alloc", "direct_reclaim", "mark_victim")
    blocked = _bpf(group, kernel)
    if blocked is not None:
        return blocked
    absent = [name for name in wanted if name not in kernel.features]
    if len(absent) == len(wanted):
        return _needs_features(group, kernel, wanted)
    note = f"this kernel has no {', '.join(absent)}: those events are not seen" if absent else ""
    return Readiness(group=group, ok=True, reason=note)


def python_frames(kernel: KernelFacts) -> Readiness:
    """Lines of Python code of a traced call."""
    group = "Python frames"
    blocked = _bpf(group, kernel)
    if blocked is not None:
        return blocked
    missing = kernel.lacks("SYS_PTRACE")
    return _no_capability(group, missing, "to read interpreters") if missing else Readiness(group=group, ok=True)


def _bpf(group: str, kernel: KernelFacts) -> Readiness | None:
    """What keeps any BPF program of this project from loading; None if nothing does."""
    reason, fix = "", ""
    missing = kernel.lacks("BPF", "PERFMON")
    if (0, 0) < kernel.version < MIN_RELEASE:
        reason, fix = f"Linux {kernel.release} is older than {MIN_RELEASE[0]}.{MIN_RELEASE[1]}", _KERNEL_FIX
    elif not kernel.has_btf:
        reason, fix = "the kernel carries no type information (/sys/kernel/btf/vmlinux)", _BTF_FIX
    elif kernel.lockdown == "confidentiality":
        reason = "the kernel is locked down in confidentiality mode, which forbids BPF programs to read memory"
        fix = "boot without lockdown=confidentiality"
    elif not kernel.is_init_pid_namespace:
        reason = "the agent runs in a PID namespace of its own, so its pids are not the kernel's"
        fix = "start its container with the host's PID namespace: docker run --pid=host, or hostPID: true in the pod"
    elif missing:
        return _no_capability(group, missing, "to load BPF programs")
    else:
        return None
    return Readiness(group=group, ok=False, reason=reason, fix=fix)


def _needs_features(group: str, kernel: KernelFacts, names: Sequence[str]) -> Readiness:
    absent = [name for name in names if name not in kernel.features]
    if not absent:
        return Readiness(group=group, ok=True)
    return Readiness(
        group=group, ok=False, reason=f"Linux {kernel.release} has no {', '.join(absent)}", fix=_KERNEL_FIX
    )


def _no_capability(group: str, missing: Sequence[str], purpose: str) -> Readiness:
    names = " and ".join(f"CAP_{name}" for name in missing)
    return Readiness(group=group, ok=False, reason=f"{names} missing {purpose}", fix=_ROOT_FIX)


def _library_note(scan: LibraryScan, library: Library) -> str:
    copies = [copy for copy in scan.copies if copy.file.library is library]
    unreadable = [one for one in scan.unreadable if library.value in one.mapped_path]
    if unreadable:
        return f"{len(unreadable)} mapped copies cannot be read: {unreadable[0].reason}"
    return "" if copies else "no process has loaded it yet; it is picked up when one does"
