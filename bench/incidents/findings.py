"""The findings of a diagnosis as plain values for a results file."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis, Fact, Incident
from ingero.store.reader import open_reader

UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One incident. Times are unix ns; file, line, function are "" and 0 without a Python line.

    where: the text of its Where line. is_located: whether that names a line.
    """

    cause: str
    kind: str
    severity: str
    begin_ns: int
    end_ns: int
    lost_ns: int
    lost_ratio: float
    explained_ratio: float
    summary: str
    culprits: list[tuple[int, str]] = field(default_factory=list)
    affected: list[int] = field(default_factory=list)
    file: str = ""
    line: int = 0
    function: str = ""
    where: str = ""
    is_located: bool = False
    evidence: dict[str, Fact] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """Whether the incident names a cause."""
        return self.cause != UNEXPLAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The findings of one diagnosis, and its duration."""

    found: list[Found]
    not_evaluated: list[str]
    took_s: float


def ask(database: Path) -> Answer:
    """Diagnose a recording."""
    began = time.monotonic()
    with open_reader(database) as reader:
        window = reader.window(None, time.time_ns())
        assert window is not None, "an empty recording"
        result: Diagnosis = diagnose(reader, window)
    return Answer(
        found=[_found(one) for one in result.incidents],
        not_evaluated=[one.cause for one in result.not_evaluated],
        took_s=time.monotonic() - began,
    )


def _found(one: Incident) -> Found:
    return Found(
        cause=one.cause,
        kind=one.kind.value,
        severity=one.severity.name.lower(),
        begin_ns=one.start_ns,
        end_ns=one.end_ns or 0,
        lost_ns=one.lost_ns,
        lost_ratio=one.lost_ratio,
        explained_ratio=one.explained_ratio,
        summary=one.summary,
        culprits=[(culprit.pid, culprit.name) for culprit in one.culprits],
        affected=[affected.pid for affected in one.affected],
        file=one.line.file if one.line else "",
        line=one.line.line if one.line else 0,
        function=one.line.function if one.line else "",
        where=one.where.text,
        is_located=one.where.line is not None,
        evidence=dict(one.evidence),
    )
