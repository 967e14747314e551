"""A pod's CPU limit is used up by another process of the same pod: a log shipper, a notebook, `kubectl exec`.

Trainer and sidecar share a cgroup of 0.6 CPUs, of which the trainer needs 0.2. Then the sidecar computes without a
pause, and the kernel throttles both for the rest of each period. The trainer's own threads are not to blame.

Source: https://github.com/kubernetes/kubernetes/issues/97007
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault
from bench.situations.program import Gpu, compute, has_begun, logged_steps, play
from ingero.demo.faults import cgroups
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_QUOTA_US = 60_000  # of each 100 ms


def sidecar(folder: Path) -> None:
    """Sleeps; then it computes."""
    naming.name_this_thread("log-shipper")
    lifecycle.announce("ready")
    while True:
        if has_begun(folder):
            compute(0.05)
        else:
            time.sleep(0.05)


def trainer(folder: Path) -> None:
    """Trains."""
    gpu = Gpu()
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        gpu.step()


def make(situation: Situation) -> None:
    """Both are in one cgroup with a quota; the trainer alone is traced."""
    situation.start("sidecar")
    situation.start("trainer")
    with cgroups.group("cpu", "situation") as group:
        group.set_cpu_limit(_QUOTA_US)
        for pid in situation.pids.values():
            group.add(pid)
        situation.record("trainer")


EXPECTED = Fault(
    answer="""cpu-throttled, with how much of the quota was used by other processes of the cgroup (the agent does not
    see which: it was log-shipper [<sidecar>]), while the trainer used a part of its share only. Wrong: cpu-throttled
    that leaves the trainer's own threads as the only suspects ("run fewer threads at once", OMP_NUM_THREADS=1);
    cpu-contention, self-oversubscription, noisy-neighbor.""",
    wanted=(r"^cpu-throttled:", r"at least \d+% of it by processes of its cgroup that are not traced"),
    never=(
        r"^(?:cpu-contention|self-oversubscription|noisy-neighbor|gpu-slower|unexplained):",
        r"OMP_NUM_THREADS",
    ),
    slower=1.1,
)

if __name__ == "__main__":
    play({"sidecar": sidecar, "trainer": trainer})
