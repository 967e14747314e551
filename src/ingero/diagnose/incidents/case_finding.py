"""A finding with the case that it is about."""

from __future__ import annotations

from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Finding, FindingKind


@dataclass(frozen=True, slots=True)
class Found:
    """A finding and the case it is about; None: about the recording as a whole."""

    finding: Finding
    case: Case | None

    @property
    def kind(self) -> FindingKind:
        """What it claims; a bottleneck is counted against zero, so it is never added to an incident's lost time."""
        return self.finding.kind or (self.case.kind if self.case else FindingKind.EVENT)

    @property
    def process(self) -> int:
        """Whose case it is about, or who lost the time; 0: nobody in particular."""
        if self.case:
            return self.case.process.process
        return self.finding.affected.process if self.finding.affected else 0

    @property
    def begin_ns(self) -> int:
        """When it began."""
        return self._window[0]

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self._window[1]

    @property
    def _window(self) -> tuple[int, int]:
        window = self.finding.window or (self.case.window if self.case else None)
        return (window.begin_ns, window.end_ns) if window else (0, 0)
