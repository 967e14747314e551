"""Measures at start what one probe hit costs the thread that runs into it, on functions of our own."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

from ingero.attach.kernel_side import KernelSide
from ingero.capture.budget.calibration import OwnCode, in_a_thread, traced_here
from ingero.capture.loop.rings import Ring

_CALLS = 1000
_TURNS = 5  # the least of them counts: an interrupt only ever adds
_OWN_OP = (1, 0, 0, 0)  # set of operation ids that holds 0
_NO_OP = (0, 0, 0, 0)

# At 0 a function that begins as most of a library's do; at 16 and at 64 a loop that calls it, the same code twice, so
# that one of them can be probed: calls inside it are nested.
_FUNCTION, _PROBED_LOOP, _LOOP = 0, 16, 64
_CODE = {
    # 0: push %rbp; pop %rbp; ret
    # 16: push %rbp; push %rbx; mov %rdi, %rbx; 1: call 0; dec %rbx; jnz 1b; pop %rbx; pop %rbp; ret
    "x86_64": (
        "555dc3cccccccccccccccccccccccccc 55534889fbe8e6ffffff48ffcb75f65b 5dc3cccccccccccccccccccccccccccc"
        "cccccccccccccccccccccccccccccccc 55534889fbe8b6ffffff48ffcb75f65b 5dc3"
    ),
    # 0: nop; ret
    # 16: nop; stp x29, x30, [sp, #-32]!; str x19, [sp, #16]; mov x19, x0; 1: bl 0; subs x19, x19, #1; b.ne 1b;
    #     ldr x19, [sp, #16]; ldp x29, x30, [sp], #32; ret
    "aarch64": (
        "1f2003d5c0035fd61f2003d51f2003d5 1f2003d5fd7bbea9f30b00f9f30300aa f8ffff97730600f1c1ffff54f30b40f9"
        "fd7bc2a8c0035fd61f2003d51f2003d5 1f2003d5fd7bbea9f30b00f9f30300aa ecffff97730600f1c1ffff54f30b40f9"
        "fd7bc2a8c0035fd6"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrapCosts:
    """CPU time of the traced thread per probe hit.

    full: times from entry to return. nested: inside another traced call. counted: at the entry only. suspended:
    the probe is there, and nothing is done. Caches are hot: what a real loop pays is more.
    """

    full_ns: float
    nested_ns: float
    counted_ns: float
    suspended_ns: float


def measure_trap_costs(kernel: KernelSide, calls: Ring, forget: Callable[[int], None]) -> TrapCosts | None:
    """Measures the costs on the same path that calls take; None if no process slot is left.

    calls: the ring of recorded calls, whose records of these calls are thrown away. forget: removes what a slot has
    left in the kernel's sums.
    """
    code = OwnCode(bytes.fromhex(_CODE[platform.machine()]))
    costs: list[TrapCosts] = []
    try:
        plain_ns = _least_ns(code.function(_LOOP, ctypes.c_long))
        with traced_here(kernel, code, [_PROBED_LOOP, _FUNCTION]) as slot:
            if slot is None:
                return None
            in_a_thread(lambda: costs.append(_costs(kernel, code, plain_ns)))
    finally:
        kernel.change_settings(counted_ops=_NO_OP, suspended_ops=_NO_OP)
        code.close()
    calls.drain()
    forget(slot)
    return costs[0]


def _costs(kernel: KernelSide, code: OwnCode, plain_ns: float) -> TrapCosts:
    outermost, nested = code.function(_LOOP, ctypes.c_long), code.function(_PROBED_LOOP, ctypes.c_long)
    full_ns, nested_ns = _least_ns(outermost), _least_ns(nested)
    kernel.change_settings(counted_ops=_OWN_OP)
    counted_ns = _least_ns(outermost)
    kernel.change_settings(suspended_ops=_OWN_OP)
    return TrapCosts(
        full_ns=full_ns - plain_ns,
        nested_ns=nested_ns - plain_ns,
        counted_ns=counted_ns - plain_ns,
        suspended_ns=_least_ns(outermost) - plain_ns,
    )


def _least_ns(loop: Callable[..., int]) -> float:
    """The least CPU time of one iteration of a loop, ns."""
    least_ns = float("inf")
    for _ in range(_TURNS):
        before_ns = time.thread_time_ns()
        loop(_CALLS)
        least_ns = min(least_ns, (time.thread_time_ns() - before_ns) / _CALLS)
    return least_ns
