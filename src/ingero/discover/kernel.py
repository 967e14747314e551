"""Reads from /proc and /sys what this kernel and the agent's privileges allow.

Features are looked for by name in the kernel's own type information, not guessed from its version: distributions
backport them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ingero.discover.confinement import Confinement, confinement
from ingero.discover.kernel_clock import TimeNamespaceError, read_offsets
from ingero.discover.processes import PROC

SYS = Path("/sys")
_INIT_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_INIT_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO
_CAPABILITIES = {
    1: "DAC_OVERRIDE",
    2: "DAC_READ_SEARCH",
    12: "NET_ADMIN",
    19: "SYS_PTRACE",
    21: "SYS_ADMIN",
    24: "SYS_RESOURCE",
    34: "SYSLOG",
    38: "PERFMON",
    39: "BPF",
    40: "CHECKPOINT_RESTORE",
}

_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "SYS_ADMIN": ("BPF", "PERFMON", "CHECKPOINT_RESTORE"),
    "DAC_OVERRIDE": ("DAC_READ_SEARCH",),
}

FEATURES: Mapping[str, str] = {
    "ring_buffer": "BPF_MAP_TYPE_RINGBUF",
    "task_storage": "BPF_MAP_TYPE_TASK_STORAGE",
    "attach_cookie": "BPF_FUNC_get_attach_cookie",
    "task_registers": "BPF_FUNC_task_pt_regs",
    "task_iterator": "bpf_iter__task",
    "uprobe_multi": "BPF_TRACE_UPROBE_MULTI",
    "uprobe_session": "BPF_TRACE_UPROBE_SESSION",
    "sched_switch": "btf_trace_sched_switch",
    "sched_waking": "btf_trace_sched_waking",
    "sched_delayed": "sched_delayed",
    "eevdf": "vlag",
    "task_throttling": "sched_throttle_work",
    "block_rq_issue": "btf_trace_block_rq_issue",
    "tcp_retransmit_skb": "btf_trace_tcp_retransmit_skb",
    "mm_page_alloc": "btf_trace_mm_page_alloc",
    "direct_reclaim": "btf_trace_mm_vmscan_direct_reclaim_begin",
    "mark_victim": "btf_trace_mark_victim",
    "sock_send_length": "btf_trace_sock_send_length",
    "sock_recv_length": "btf_trace_sock_recv_length",
    "signal_generate": "btf_trace_signal_generate",
}
"""Feature -> the name in the kernel's type information that stands for it."""

NEEDED_FEATURES: Mapping[str, str] = {
    "ring_buffer": "5.8",
    "task_storage": "5.11",
    "attach_cookie": "5.15",
    "task_registers": "5.15",
}
"""What no program of ours does without -> the release of kernel.org that brought it; distributions have it earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """Facts of the kernel and of this process's privileges. None: not reported (or no such setting).

    version: (major, minor) of `release`.
    features: keys of `FEATURES` that the kernel has; empty without type information (BTF).
    lockdown: none, integrity or confidentiality.
    ptrace_scope: Yama's switch 0-3; None where Yama is absent.
    capabilities: the effective ones among those the agent can use, without the prefix CAP_.
    is_init_pid_namespace: whether pids seen here are the kernel's own.
    is_init_user_namespace: whether capabilities count for the whole machine; a rootless container's do not.
    unknown_time: why the kernel's clock cannot be known in this time namespace, and the way out; None: it can.
    is_root: whether the agent runs under uid 0.
    confinement: what may forbid things whatever the capabilities say.
    sched_ext: name of the scheduler written in BPF that is active (6.12); None: the kernel's own.
    """

    release: str
    version: tuple[int, int]
    architecture: str
    has_btf: bool
    features: frozenset[str]
    lockdown: str | None
    perf_event_paranoid: int | None
    ptrace_scope: int | None
    bpf_stats_enabled: bool | None
    capabilities: frozenset[str]
    is_init_pid_namespace: bool
    is_init_user_namespace: bool = True
    unknown_time: tuple[str, str] | None = None
    is_root: bool = False
    sched_ext: str | None = None
    confinement: Confinement | None = None

    @property
    def absent(self) -> tuple[str, ...]:
        """The `NEEDED_FEATURES` that the kernel's type information does not name."""
        return tuple(name for name in NEEDED_FEATURES if name not in self.features)

    def lacks(self, *capabilities: str) -> tuple[str, ...]:
        """The named capabilities that this process lacks; some imply others."""
        implied = {name for held, names in _IMPLIED.items() if held in self.capabilities for name in names}
        return tuple(name for name in capabilities if name not in self.capabilities | implied)


def read_kernel(proc: Path = PROC, sys: Path = SYS) -> KernelFacts:
    """Reads all facts; costs about 20 ms, most of it for the type information."""
    system = os.uname()
    release = _text(proc / "sys/kernel/osrelease") or system.release
    btf = sys / "kernel/btf/vmlinux"
    stats = _number(proc / "sys/kernel/bpf_stats_enabled")
    status = _text(proc / "self/status")
    return KernelFacts(
        release=release,
        version=parse_release(release),
        architecture=system.machine,
        has_btf=btf.exists(),
        features=features_in(btf),
        lockdown=_lockdown(_text(sys / "kernel/security/lockdown")),
        perf_event_paranoid=_number(proc / "sys/kernel/perf_event_paranoid"),
        ptrace_scope=_number(proc / "sys/kernel/yama/ptrace_scope"),
        bpf_stats_enabled=None if stats is None else bool(stats),
        capabilities=_effective_capabilities(status),
        is_init_pid_namespace=_is_namespace(proc, "pid", _INIT_PID_NAMESPACE),
        is_init_user_namespace=_is_namespace(proc, "user", _INIT_USER_NAMESPACE, unless_known=True),
        unknown_time=_unknown_time(proc),
        is_root=bool(re.search(r"^Uid:\s+\d+\s+0\s", status, re.MULTILINE)),
        sched_ext=_sched_ext(sys / "kernel/sched_ext"),
        confinement=confinement(proc, sys),
    )


def _unknown_time(proc: Path) -> tuple[str, str] | None:
    try:
        read_offsets(proc / "self")
    except TimeNamespaceError as error:
        return str(error), error.hint
    return None


def parse_release(release: str) -> tuple[int, int]:
    """(major, minor) of a kernel release such as `6.1.0-18-cloud-amd64`; (0, 0) if it has no such beginning."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def features_in(btf: Path, wanted: Iterable[str] = FEATURES) -> frozenset[str]:
    """Which features the type information names; none if it cannot be read."""
    return _all_features(btf).intersection(wanted)


@lru_cache(maxsize=2)
def _all_features(btf: Path) -> frozenset[str]:
    """All features, cached: finding them takes 15 ms."""
    try:
        raw = btf.read_bytes()
    except OSError:
        return frozenset()
    return frozenset(feature for feature, name in FEATURES.items() if b"\0" + name.encode() + b"\0" in raw)


def throttles_tasks(btf: Path = SYS / "kernel/btf/vmlinux") -> bool:
    """Whether a CPU quota throttles task by task (6.18); where it throttles cgroups, culprits are unknown."""
    return "task_throttling" in features_in(btf, ["task_throttling"])


def _effective_capabilities(status: str) -> frozenset[str]:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    bits = int(match[1], 16) if match else 0
    return frozenset(name for bit, name in _CAPABILITIES.items() if bits >> bit & 1)


def _is_namespace(proc: Path, kind: str, inode: int, *, unless_known: bool = False) -> bool:
    """Whether the agent is in the namespace with this inode; `unless_known` on a kernel without such namespaces."""
    try:
        return (proc / "self/ns" / kind).stat().st_ino == inode
    except OSError:
        return unless_known


def _sched_ext(folder: Path) -> str | None:
    """Documentation/scheduler/sched-ext.rst: `state` and `root/ops`."""
    if _text(folder / "state") != "enabled":
        return None
    return _text(folder / "root/ops") or "unnamed"


def _lockdown(text: str) -> str | None:
    """The state in brackets: `[none] integrity confidentiality`."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
