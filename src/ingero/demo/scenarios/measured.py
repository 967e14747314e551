"""A scenario's incident in numbers, measured in its recording: calls, steps and shares, before and during it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis, Incident
from ingero.ops import OPS, Kind
from ingero.store.reader import Reader
from ingero.store.records import OpShare, Window
from ingero.units import format_ns

_KINDS = {(int(op.source), op.code): op.kind for op in OPS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A recording, its diagnosis and the incident that the scenario is about.

    fault: when the demo caused it; None: as the diagnosis says. On a busy host, lost time may start before the fault.
    """

    reader: Reader
    diagnosis: Diagnosis
    incident: Incident
    fault: Window | None = None

    @property
    def process(self) -> int:
        """The number of the process that lost most."""
        return self.incident.affected[0].process

    @property
    def window(self) -> Window:
        """The time range of the fault, or else of the incident."""
        whole = self.diagnosis.window
        return self.fault or Window(begin_ns=self.incident.start_ns, end_ns=self.incident.end_ns or whole.end_ns)

    @property
    def before(self) -> Window:
        """The time range from the start of the recording to the start of `window`."""
        return Window(begin_ns=self.diagnosis.window.begin_ns, end_ns=self.window.begin_ns)

    def fact(self, name: str) -> float:
        """A number in the evidence of the incident; 0 where it is none."""
        value = self.incident.evidence.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def mean_call_ns(self, window: Window, kinds: Kind) -> float:
        """The mean length of the calls of these kinds; 0 where there were none."""
        calls = self._calls(window, kinds)
        return sum(share.sum_ns for share in calls) / max(sum(share.count for share in calls), 1)

    def share_of_wall(self, window: Window, kinds: Kind) -> float:
        """The ratio of the window that the process was inside calls of these kinds."""
        return sum(share.sum_ns for share in self._calls(window, kinds)) / max(window.duration_ns, 1)

    def step_p99_ns(self, window: Window) -> float:
        """The 99th percentile of the step length (ns) in the window; 0 where there were no steps."""
        gpu_stream = Evidence(self.reader, self.diagnosis.window).gpu_streams[self.process]
        ends = gpu_stream["sync_end_ns"]
        lengths = (ends - gpu_stream["prev_sync_end_ns"])[(ends >= window.begin_ns) & (ends < window.end_ns)]
        return float(np.quantile(lengths, 0.99)) if len(lengths) else 0.0

    def spikes(self) -> tuple[float, float]:
        """How many steps apart the long steps are, and how much longer than the others they are (ns); medians.

        A step is long if it exceeds the median by at least half as much as the longest does. With one long step, the
        distance is 0.
        """
        gpu_stream = Evidence(self.reader, self.diagnosis.window).gpu_streams[self.process]
        gpu_stream = gpu_stream[
            (gpu_stream["sync_end_ns"] >= self.window.begin_ns) & (gpu_stream["sync_end_ns"] < self.window.end_ns)
        ]
        lengths = gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"]
        excess = lengths - np.median(lengths)
        where = np.flatnonzero(excess >= excess.max() / 2)
        return float(np.median(np.diff(where))) if len(where) > 1 else 0.0, float(np.median(excess[where]))

    def _calls(self, window: Window, kinds: Kind) -> list[OpShare]:
        shares = self.reader.op_shares((window,), process=self.process)
        return [share for share in shares if _KINDS.get((share.source, share.op), Kind.NONE) & kinds]


def longer(now_ns: float, baseline_ns: float) -> tuple[float, str]:
    """The ratio of both lengths, and a text of it; 0 where there is no baseline."""
    if not baseline_ns:
        return 0.0, f"took {format_ns(now_ns)}, and there was no time without the fault to compare it with"
    ratio = now_ns / baseline_ns
    return ratio, f"took {ratio:.1f}x as long: {format_ns(now_ns)} instead of {format_ns(baseline_ns)}"
