"""Drops a share of the packets that arrive at an interface, with a ten-instruction XDP program of our own.

No firewall tool and no queueing discipline is needed, and the kernel removes the program when the file descriptor is
closed, even by SIGKILL. Source: linux/bpf.h (union bpf_attr, BPF_LINK_CREATE since 5.7 for XDP since 5.9).
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ingero.demo.faults.model import FaultError

_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _LINK_CREATE = 5, 28
_PROG_TYPE_XDP, _ATTACH_XDP = 6, 37
_SKB_MODE = 1 << 1  # before the stack but after the driver: works on every interface
_GET_PRANDOM_U32 = 7
_ETH_HEADER_BYTES, _ETH_PROTOCOL_OFFSET = 14, 12


@contextmanager
def dropping(interface: str, share: float) -> Iterator[None]:
    """Drop `share` (0-1) of the IPv4 packets that `interface` receives; ARP passes.

    Raises:
        FaultError: the kernel refused the program.
    """
    program = load(share)
    try:
        attributes = struct.pack("=IIII", program, socket.if_nametoindex(interface), _ATTACH_XDP, _SKB_MODE)
        link = _bpf(_LINK_CREATE, attributes)
    finally:
        os.close(program)
    try:
        yield
    finally:
        os.close(link)


def load(share: float) -> int:
    """Load the program; return its file descriptor.

    Raises:
        FaultError: the kernel refused it.
    """
    code = b"".join(_instructions(share))
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(b"Dual BSD/GPL")
    addresses = ctypes.addressof(instructions), ctypes.addressof(license_text)
    return _bpf(_PROG_LOAD, struct.pack("=IIQQ", _PROG_TYPE_XDP, len(code) // 8, *addresses))


def _instructions(share: float) -> list[bytes]:
    threshold = min(0xFFFFFFFF, int(share * 0x100000000))
    return [
        _op(0x61, dst=2, src=1, offset=4),  # r2 = ctx->data_end
        _op(0x61, dst=1, src=1, offset=0),  # r1 = ctx->data
        _op(0xBF, dst=3, src=1),  # r3 = r1
        _op(0x07, dst=3, value=_ETH_HEADER_BYTES),  # r3 += 14
        _op(0x2D, dst=3, src=2, offset=4),  # if r3 > r2 goto pass
        _op(0x69, dst=4, src=1, offset=_ETH_PROTOCOL_OFFSET),  # r4 = ethertype
        _op(0x55, dst=4, offset=2, value=socket.htons(0x0800)),  # if r4 != IPv4 goto pass
        _op(0x85, value=_GET_PRANDOM_U32),
        _op(0xA6, dst=0, offset=2, value=threshold),  # if w0 < threshold goto drop
        _op(0xB7, value=2),  # pass: r0 = XDP_PASS
        _op(0x95),
        _op(0xB7, value=1),  # drop: r0 = XDP_DROP
        _op(0x95),
    ]


def _op(code: int, *, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhI", code, src << 4 | dst, offset, value & 0xFFFFFFFF)


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise FaultError(f"no bpf system call number known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, 128)
    if result < 0:
        reason = os.strerror(ctypes.get_errno())
        raise FaultError(f"bpf command {command} for dropping packets: {reason}", hint="run as root on Linux >= 5.9")
    return result
