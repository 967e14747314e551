"""A thin binding of libbpf: objects, maps, programs and links, as resources that close themselves.

Functions and their meaning: libbpf 1.0 `bpf/libbpf.h`. `uprobe.multi` and `uprobe.session` links are made with the
bpf(2) system call (uapi/linux/bpf.h), so that an older libbpf is enough.
"""

from ingero.attach.libbpf.binding import BpfError, LibbpfMissingError, libbpf_version, library_call, possible_cpus
from ingero.attach.libbpf.features import Helper, KernelTypes, has_helper, kernel_types
from ingero.attach.libbpf.maps import Map
from ingero.attach.libbpf.objects import BpfObject
from ingero.attach.libbpf.programs import AttachType, CpuClock, Link, Program

__all__ = [
    "AttachType",
    "BpfError",
    "BpfObject",
    "CpuClock",
    "Helper",
    "KernelTypes",
    "LibbpfMissingError",
    "Link",
    "Map",
    "Program",
    "has_helper",
    "kernel_types",
    "libbpf_version",
    "library_call",
    "possible_cpus",
]
