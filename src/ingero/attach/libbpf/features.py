"""What the kernel offers: its types by BTF, and its helpers."""

from __future__ import annotations

import ctypes as c
import enum
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ingero.attach.libbpf.binding import failure, libbpf

PROGRAM_TYPE_KPROBE = 2  # enum bpf_prog_type; uprobe programs are of this type
_BTF_KIND_TYPEDEF, _BTF_KIND_DATASEC = 8, 15  # linux/btf.h


class Helper(enum.IntEnum):
    """Numbers of BPF helpers that not every supported kernel has (uapi/linux/bpf.h)."""

    LOOP = 181  # 5.17


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTypes:
    """What was asked of the kernel's type information.

    arguments: how many each tracepoint passes to a BPF program. percpu: offsets of per-CPU variables in their section.
    What this kernel does not have is left out.
    """

    arguments: Mapping[str, int]
    percpu: Mapping[str, int]


def kernel_types(*, tracepoints: Sequence[str], percpu: Sequence[str]) -> KernelTypes:
    """Looks them up; reading the kernel's types takes most of the time, so ask for all at once."""
    with _kernel_btf() as btf:
        arguments = {name: count for name in tracepoints if (count := _tracepoint_arguments(btf, name)) is not None}
        offsets = variables(btf, b".data..percpu") or variables(btf, b".data..percpu..hot")
    return KernelTypes(arguments=arguments, percpu={name: offsets[name] for name in percpu if name in offsets})


def has_helper(helper: Helper) -> bool:
    """Whether uprobe programs may call a helper on this kernel."""
    return int(libbpf().libbpf_probe_bpf_helper(PROGRAM_TYPE_KPROBE, helper, None)) == 1


def variables(btf: int, section: bytes) -> dict[str, int]:
    """Offset of each variable of a data section; none without such a section."""
    library = libbpf()
    kind = library.btf__find_by_name_kind(btf, section, _BTF_KIND_DATASEC)
    if kind < 0:
        return {}
    at = library.btf__type_by_id(btf, kind)
    count = c.c_uint32.from_address(at + 4).value & 0xFFFF
    found = {}
    for variable, offset, _size in struct.iter_unpack("<III", c.string_at(at + 12, 12 * count)):
        name_at = c.c_uint32.from_address(library.btf__type_by_id(btf, variable)).value
        found[library.btf__name_by_offset(btf, name_at).decode()] = offset
    return found


@contextmanager
def _kernel_btf() -> Iterator[int]:
    """The kernel's type information, as libbpf's handle."""
    library = libbpf()
    btf = library.btf__load_vmlinux_btf()
    if not btf:
        raise failure(
            "kernel BTF", hint="a kernel built with CONFIG_DEBUG_INFO_BTF=y is needed (/sys/kernel/btf/vmlinux)"
        )
    try:
        yield btf
    finally:
        library.btf__free(btf)


def _tracepoint_arguments(btf: int, name: str) -> int | None:
    library = libbpf()
    kind = library.btf__find_by_name_kind(btf, f"btf_trace_{name}".encode(), _BTF_KIND_TYPEDEF)
    if kind < 0:
        return None
    pointer = c.c_uint32.from_address(library.btf__type_by_id(btf, kind) + 8).value
    prototype = c.c_uint32.from_address(library.btf__type_by_id(btf, pointer) + 8).value
    information = c.c_uint32.from_address(library.btf__type_by_id(btf, prototype) + 4).value
    return (information & 0xFFFF) - 1  # the first is the tracepoint's own data
