"""Lost time in which somebody on the critical path was blocked in the kernel, wait by wait.

On the path are the process's own thread and, while that sleeps, the worker it waits for. Which waits a cause owns is
for the cause to say; here they become lost time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_paths import BLOCKED
from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.offcpu.critical_path import Segment

IsMine = Callable[[Segment], bool]
Weight = Callable[[Segment], float]


class PathWaits:
    """The paths of a case by part, with that of its syncs that returned late."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._segments: dict[Part, Sequence[Segment]] = {
            Part.IDLE: case.empty_paths,
            Part.LAUNCH: case.enqueue_paths,
            Part.RETURN_DELAY: case.late_waits,
        }

    def all(self) -> list[Segment]:
        """Every piece of every path."""
        return [one for segments in self._segments.values() for one in segments]

    def claim(self, is_mine: IsMine) -> dict[Bucket, int]:
        """What is left of the lost time of the waits that are meant."""
        return self.claim_parts(lambda one: float(one.duration_ns) if is_mine(one) else 0.0)

    def claim_parts(self, mine_ns: Weight) -> dict[Bucket, int]:
        """The same where only some of each piece is meant, in ns."""
        claims: dict[Bucket, int] = {}
        for part, segments in self._segments.items():
            for state in BLOCKED:
                own = [one for one in segments if one.depth == 0 and one.state == state]
                claims |= self._claim_share(part, state, own, mine_ns, 0)
            if part is not Part.RETURN_DELAY:  # its sleep is the wait for the device
                asleep = [one for one in segments if one.depth > 0 or one.state not in BLOCKED]
                in_kernel = sum(one.duration_ns for one in segments if blocked(one) and one.depth == 0)
                claims |= self._claim_share(part, "sleep", asleep, mine_ns, self.case.paths(part).whole_ns - in_kernel)
        return claims

    def _claim_share(
        self, part: Part, state: str, segments: Sequence[Segment], mine_ns: Weight, least_ns: int
    ) -> dict[Bucket, int]:
        whole = max(sum(one.duration_ns for one in segments), least_ns)
        mine = sum(mine_ns(one) for one in segments)
        if not whole or mine <= 0:
            return {}
        wanted = self.case.total((part,), (state,)) * mine / whole
        return {bucket: ns for bucket, ns in self.case.take((part,), (state,), wanted).items() if ns > 0}


def blocked(segment: Segment) -> bool:
    """Whether it is a wait in the kernel, of a member of the path."""
    return segment.state in BLOCKED
