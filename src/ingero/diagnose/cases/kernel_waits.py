"""Lost time in which a thread on the critical path was blocked in the kernel, wait by wait.

On the path are the process's own thread and, while it sleeps, the worker that it waits for. Each cause chooses its
waits; this module turns them into lost time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_paths import BLOCKED
from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.offcpu.critical_path import PathSegment

# Whether a segment is one of the chosen waits, and how much of it, ns.
IsMine = Callable[[PathSegment], bool]
Weight = Callable[[PathSegment], float]


class PathWaits:
    """The critical paths of a case by part, including the waits of syncs that returned late."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._segments: dict[Part, Sequence[PathSegment]] = {
            Part.IDLE: case.idle_paths,
            Part.LAUNCH: case.launch_paths,
            Part.RETURN_DELAY: case.late_waits,
        }

    def all(self) -> list[PathSegment]:
        """Every segment of every path."""
        return [segment for segments in self._segments.values() for segment in segments]

    def claim(self, is_mine: IsMine) -> dict[Bucket, int]:
        """The unclaimed lost time of the chosen waits."""
        return self.claim_parts(lambda segment: float(segment.duration_ns) if is_mine(segment) else 0.0)

    def claim_parts(self, mine_ns: Weight) -> dict[Bucket, int]:
        """The unclaimed lost time of a part of each wait. mine_ns: how long that part is, ns."""
        claims: dict[Bucket, int] = {}
        for part, segments in self._segments.items():
            for state in BLOCKED:
                own = [segment for segment in segments if segment.depth == 0 and segment.state == state]
                claims |= self._claim_share(part, state, own, mine_ns, 0)
            if part is not Part.RETURN_DELAY:  # its sleep is the wait for the GPU
                asleep = [one for one in segments if one.depth > 0 or one.state not in BLOCKED]
                in_kernel = sum(one.duration_ns for one in segments if one.depth == 0 and one.state in BLOCKED)
                claims |= self._claim_share(part, "sleep", asleep, mine_ns, self.case.paths(part).whole_ns - in_kernel)
        return claims

    def _claim_share(
        self, part: Part, state: str, segments: Sequence[PathSegment], mine_ns: Weight, min_ns: int
    ) -> dict[Bucket, int]:
        whole = max(sum(segment.duration_ns for segment in segments), min_ns)
        mine = sum(mine_ns(segment) for segment in segments)
        if not whole or mine <= 0:
            return {}
        wanted = self.case.total((part,), (state,)) * mine / whole
        return {bucket: ns for bucket, ns in self.case.claimable((part,), (state,), wanted).items() if ns > 0}
