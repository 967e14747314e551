"""Constants of this kernel that the scheduler programs need at load time, from its type information (BTF)."""

from __future__ import annotations

import struct

from ingero.attach.libbpf import kernel_types

# prev_state came with commit fa2c3254d7cf, Linux 5.18; distributions have backported it.
_SWITCH_ARGUMENTS_WITH_STATE = 4


def scheduler_constants() -> dict[str, bytes]:
    """Values of the `const volatile` globals of scheduler.bpf.c.

    preempt_count_offset: bytes from a CPU's run queue to its preemption counter, both per CPU; in pcpu_hot from 6.2 to
    6.14. Left out where a task carries the counter (arm64).
    """
    found = kernel_types(tracepoints=["sched_switch"], percpu=["runqueues", "__preempt_count", "pcpu_hot"])
    passes_state = found.arguments.get("sched_switch", 0) >= _SWITCH_ARGUMENTS_WITH_STATE
    constants = {"passes_task_state": struct.pack("<?", passes_state)}
    counter = found.percpu.get("__preempt_count", found.percpu.get("pcpu_hot"))
    if counter is not None and "runqueues" in found.percpu:
        constants["preempt_count_offset"] = struct.pack("<q", counter - found.percpu["runqueues"])
    return constants
