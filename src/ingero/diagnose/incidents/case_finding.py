"""A finding with the case that it is about."""

from __future__ import annotations

from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Finding, FindingKind


@dataclass(frozen=True, slots=True)
class CaseFinding:
    """A finding and the case it is about; None: about the recording as a whole."""

    finding: Finding
    case: Case | None

    @property
    def kind(self) -> FindingKind:
        """Kind of the finding; a bottleneck is counted against zero, so never added to an incident's lost time."""
        return self.finding.kind or (self.case.kind if self.case else FindingKind.EVENT)

    @property
    def process(self) -> int:
        """The number of the process whose case it is, or that lost the time; 0: no particular process."""
        if self.case:
            return self.case.process.process
        return self.finding.affected.process if self.finding.affected else 0

    @property
    def begin_ns(self) -> int:
        """When the time that it is about began, Unix time; 0: not known."""
        return self._window[0]

    @property
    def end_ns(self) -> int:
        """When the time that it is about ended, Unix time; 0: not known."""
        return self._window[1]

    @property
    def _window(self) -> tuple[int, int]:
        window = self.finding.window or (self.case.window if self.case else None)
        return (window.begin_ns, window.end_ns) if window else (0, 0)
