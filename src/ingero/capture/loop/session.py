"""The facts of a recording about itself: host, versions, options."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from ingero import __version__
from ingero.discover.gpus import known_nvml
from ingero.discover.host import machine_id, read_host
from ingero.store.records import SessionFacts

Value = str | int | float | bool | None


def session_facts(
    pids: Sequence[int],
    *,
    options: Mapping[str, Value] | None = None,
    not_traced: Mapping[str, str] | None = None,
) -> SessionFacts:
    """Facts of a recording that starts now.

    options: what was asked for. not_traced: sources of events that are left out, by name, and why.
    """
    host = read_host(nvml=known_nvml())
    return SessionFacts(
        uuid=str(uuid.uuid4()),
        started_ns=time.time_ns(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        machine_id=machine_id(),
        kernel=host.kernel,
        os_release=host.os_name,
        cpu_model=host.cpu_model,
        cpu_count=host.cpu_cores,
        memory_bytes=host.memory_bytes,
        gpu_model=host.gpu_model or "",
        gpu_driver=host.driver_version or "",
        cuda_ver=host.cuda_version or "",
        python_ver=host.python_version,
        ingero_ver=__version__,
        agent_pid=os.getpid(),
        pid_filter=",".join(map(str, pids)),
        flags=" ".join(sys.argv[1:]),
        options=dict(options or {}),
        not_traced=dict(not_traced or {}),
    )
