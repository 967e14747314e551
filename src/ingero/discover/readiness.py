"""Determines for each group of probes whether it can run here, why not, and which command fixes it.

`check` and `trace` ask these very functions, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingero.discover.distribution import this_distribution
from ingero.discover.kernel import FEATURES, NEEDED_FEATURES, KernelFacts
from ingero.discover.libraries import LibraryScan
from ingero.errors import IngeroError
from ingero.ops import Library
from ingero.program import command

BTF_FIX = "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (the distributions' own kernels are, since 2021)"
LOCKDOWN_FIX = "boot without lockdown=confidentiality"
PID_NAMESPACE_FIX = (
    "start its container with the host's PID namespace: docker run --pid=host, or hostPID: true in the pod"
)
_NEEDED = ("BPF", "PERFMON", "SYS_PTRACE")

# Group of host events -> the tracepoints it lives by (keys of kernel.FEATURES).
HOST_GROUPS: dict[str, tuple[str, ...]] = {
    "block I/O": ("block_rq_issue",),
    "memory": ("mm_page_alloc", "direct_reclaim", "mark_victim"),
    "signals": ("signal_generate",),
    "TCP retransmits": ("tcp_retransmit_skb",),
    "socket bytes": ("sock_send_length", "sock_recv_length"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether one group of probes can run.

    reason: why not; with `ok` something worth knowing, or empty.
    fix: the command that mends it; empty where nothing can or need be done.
    is_required: whether nothing can be traced without it.
    """

    group: str
    ok: bool
    reason: str = ""
    fix: str = ""
    is_required: bool = True


class NotReadyError(IngeroError):
    """A group of probes cannot run here; the hint is the fix."""


def require(readiness: Readiness) -> None:
    """Raises unless a group of probes can run.

    Raises:
        NotReadyError: it cannot run.
    """
    if not readiness.ok:
        raise NotReadyError(f"{readiness.group} cannot run: {readiness.reason}", hint=readiness.fix)


def all_groups(kernel: KernelFacts, scan: LibraryScan) -> tuple[Readiness, ...]:
    """The readiness of all groups, in the order shown."""
    calls = tuple(call_probes(kernel, scan, library) for library in Library)
    host = tuple(host_events(kernel, group) for group in HOST_GROUPS)
    return (*calls, scheduler_clocks(kernel), *host, python_frames(kernel))


def what_blocks(kernel: KernelFacts) -> Readiness | None:
    """The first required group that cannot run; None: `trace` can start."""
    groups = all_groups(kernel, LibraryScan(copies=(), unreadable=(), processes=0, read_again=0, skipped={}))
    return next((group for group in groups if group.is_required and not group.ok), None)


def call_probes(kernel: KernelFacts, scan: LibraryScan, library: Library) -> Readiness:
    """Readiness of probes on the calls of one library."""
    group = f"calls of {library.value}"
    blocked = _bpf(group, kernel)
    if blocked is not None:
        return blocked
    if "uprobe_multi" not in kernel.features and "SYS_ADMIN" not in kernel.capabilities:
        reason = f"Linux {kernel.release} has no multi-uprobes (6.6); the older kind needs CAP_SYS_ADMIN"
        return Readiness(group=group, ok=False, reason=reason, fix=capability_fix(kernel, ("SYS_ADMIN",)))
    return Readiness(group=group, ok=True, reason=_library_note(scan, library))


def scheduler_clocks(kernel: KernelFacts) -> Readiness:
    """Readiness of thread-state times: on-CPU, runnable, sleeping."""
    group = "thread states (scheduler)"
    readiness = _bpf(group, kernel) or _needs_features(group, kernel, ("sched_switch", "sched_waking"))
    if readiness.ok and kernel.bpf_stats_enabled:
        # Measured: 437 ns a probe without, 498 ns with it (Linux 6.18).
        reason = "kernel.bpf_stats_enabled is on: every BPF program run costs about 55 ns more"
        return Readiness(group=group, ok=True, reason=reason, fix="sudo sysctl kernel.bpf_stats_enabled=0")
    if readiness.ok and kernel.sched_ext:
        reason = (
            f"the sched_ext scheduler {kernel.sched_ext} is active: thread-state time and culprits are valid, "
            "its scheduling policy is its own"
        )
        return Readiness(group=group, ok=True, reason=reason)
    return readiness


def host_events(kernel: KernelFacts, group: str) -> Readiness:
    """Readiness of one of HOST_GROUPS. Recording goes on without it, and says so."""
    wanted = HOST_GROUPS[group]
    blocked = _bpf(group, kernel)
    if blocked is not None:
        return blocked
    absent = [name for name in wanted if name not in kernel.features]
    if len(absent) == len(wanted):
        return _needs_features(group, kernel, wanted, is_required=False)
    note = f"this kernel has no {', '.join(absent)}: those events are not seen" if absent else ""
    return Readiness(group=group, ok=True, reason=note, is_required=False)


def python_frames(kernel: KernelFacts) -> Readiness:
    """Readiness of Python lines of traced calls."""
    group = "Python frames"
    return _bpf(group, kernel) or Readiness(group=group, ok=True, is_required=False)


def _bpf(group: str, kernel: KernelFacts) -> Readiness | None:
    """What keeps any BPF program of this project from loading; None if nothing does."""
    reason, fix = "", ""
    missing = kernel.lacks(*_NEEDED)
    if not kernel.has_btf:
        reason, fix = "the kernel carries no type information (/sys/kernel/btf/vmlinux)", BTF_FIX
    elif kernel.absent:
        reason, fix = f"Linux {kernel.release} lacks {absent_text(kernel)}", this_distribution().kernel_fix
    elif kernel.lockdown == "confidentiality":
        reason = "the kernel is locked down in confidentiality mode, which forbids BPF programs to read memory"
        fix = LOCKDOWN_FIX
    elif not kernel.is_init_pid_namespace:
        reason = "the agent runs in a PID namespace of its own, so its pids are not the kernel's"
        fix = PID_NAMESPACE_FIX
    elif kernel.unknown_time:
        reason, fix = kernel.unknown_time
    elif not kernel.is_init_user_namespace:
        reason = "the agent runs in a user namespace (a rootless container), where capabilities do not reach the kernel"
        fix = user_namespace_fix()
    elif missing:
        return _no_capability(group, kernel, missing)
    else:
        return None
    return Readiness(group=group, ok=False, reason=reason, fix=fix)


def absent_text(kernel: KernelFacts) -> str:
    """Text naming the required features that this kernel lacks, by the kernel's own names."""
    return ", ".join(f"{FEATURES[name]} (Linux {NEEDED_FEATURES[name]})" for name in kernel.absent)


def _needs_features(group: str, kernel: KernelFacts, names: Sequence[str], *, is_required: bool = True) -> Readiness:
    absent = [name for name in names if name not in kernel.features]
    if not absent:
        return Readiness(group=group, ok=True, is_required=is_required)
    reason = f"Linux {kernel.release} has no {', '.join(absent)}"
    return Readiness(group=group, ok=False, reason=reason, fix=this_distribution().kernel_fix, is_required=is_required)


def _no_capability(group: str, kernel: KernelFacts, missing: Sequence[str]) -> Readiness:
    names = " and ".join(f"CAP_{name}" for name in missing)
    purposes = []
    if {"BPF", "PERFMON"} & set(missing):
        purposes.append("to load BPF programs")
    if "SYS_PTRACE" in missing:
        purposes.append("to see what other users' processes have mapped")
    reason = f"{names} missing {' and '.join(purposes)}"
    return Readiness(group=group, ok=False, reason=reason, fix=capability_fix(kernel, missing))


def root_fix() -> str:
    """The fix if only root is missing."""
    return command("trace", as_root=True)


def user_namespace_fix() -> str:
    """The fix in a rootless container."""
    return f"run it outside: {root_fix()}"


def capability_fix(kernel: KernelFacts, missing: Sequence[str]) -> str:
    """The fix for missing capabilities: root without one is in a container, where sudo does not help."""
    if not kernel.is_root:
        return root_fix()
    options = " ".join(f"--cap-add {name}" for name in missing)
    names = ", ".join(missing)
    return f"docker run {options}, or securityContext: {{capabilities: {{add: [{names}]}}}} in the pod"


def _library_note(scan: LibraryScan, library: Library) -> str:
    copies = [copy for copy in scan.copies if copy.file.library is library]
    unreadable = [one for one in scan.unreadable if one.library is library or library.value in one.mapped_path]
    if unreadable:
        return f"{len(unreadable)} mapped copies cannot be read: {unreadable[0].reason}"
    return "" if copies else "no process has loaded it yet; it is traced as soon as one does"
