"""Programs that do not wait for their main stream once a step, and how much host time each can hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.incidents.plan.doses import STEP_MS
from bench.incidents.scenario import Workload

GPU_MS = 6.3  # of a step of the default loop
HOST_MS = 1.9  # of it, launches and the batch: what a GPU that paces the loop leaves free is the rest
HOST_PACED = ("--us", "10", "--workers", "0", "--cpu-ms", "4")  # 1.5 ms of GPU work, 6 ms of host

LOADS_ITSELF = frozenset({"data-starvation", "host-bound"})  # its thread decodes for 4 ms of each step, the GPU idles


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program by its arguments. A step's host part may grow by `slack_ms` before the GPU has to wait for it."""

    arguments: tuple[str, ...]
    slack_ms: float
    step_ms: float = STEP_MS
    workload: Workload = "train"
    own: frozenset[str] = frozenset()  # true of it without any disturbance

    @property
    def is_host_paced(self) -> bool:
        """Whether the GPU waits for the host in every step."""
        return self.slack_ms == 0

    def host_share(self) -> float:
        """How much of the step the host needs."""
        return 1 - self.slack_ms / self.step_ms

    def exposed(self, dose: float) -> float:
        """The dose for a default step that costs such a share of this program's time, what hides it included."""
        more_ms = self.slack_ms + self.step_ms * dose / (1 - dose)
        return more_ms / (more_ms + STEP_MS)


def _train(pattern: str, slack_ms: float = GPU_MS - HOST_MS) -> Program:
    return Program(arguments=("--pattern", pattern), slack_ms=slack_ms)


GPU_PACED: Mapping[str, Program] = MappingProxyType(
    {
        "nosync": _train("no-sync"),
        "batchcopy": _train("batch-copy"),
        "itemmid": _train("item-mid", slack_ms=3.0),  # the backward pass hides what comes before the next forward
        "copystream": _train("copy-stream"),
        "pipeline": _train("event-pipeline"),
        "accumulate": _train("accumulate"),  # but for the first of four, whose host part nothing hides
        "eval": _train("eval"),
        "shapes": _train("shapes"),
    }
)
HOST_BOUND: Mapping[str, Program] = MappingProxyType(
    {
        f"{name}-host": Program(arguments=(*GPU_PACED[name].arguments, *HOST_PACED), slack_ms=0, own=LOADS_ITSELF)
        for name in ("nosync", "batchcopy", "pipeline")
    }
)
INFERENCE: Mapping[str, Program] = MappingProxyType(
    {
        # its only thread decodes each request while the GPU is idle: a fifth of the time
        "requests": Program(
            workload="infer", arguments=("--pattern", "requests"), slack_ms=0, own=frozenset({"host-bound"})
        ),
        "tokens": Program(workload="infer", arguments=("--pattern", "tokens"), slack_ms=1.3, step_ms=1.6),
    }
)
PROGRAMS: Mapping[str, Program] = MappingProxyType({**GPU_PACED, **HOST_BOUND, **INFERENCE})
