"""Heat map of lost time by node and time, for the fleet page of the dashboard, from the nodes' diagnoses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

import msgspec

from ingero.diagnose.findings import Severity
from ingero.fleet.client import NodeClient
from ingero.fleet.fan_out import FleetAnswer, Missing
from ingero.fleet.names import names_of
from ingero.fleet.node_lists import Node
from ingero.serve.structured.row_lines import Identity

Object: TypeAlias = "dict[str, Any]"  # becomes JSON at once; no module reads it

COLUMNS = 120  # of time: 8 pixels each on a wide screen
_PERMILLE = 1000
_USUAL: Object = {
    "lost_ns": 0, "first": 0, "last": COLUMNS - 1, "is_judged": True, "incidents": 0, "cells": [],
}  # fmt: skip  # as web/src/fleet.tsx fills in
_WORST_FIRST = [one.name for one in sorted(Severity, reverse=True)]
_MAX_INCIDENTS = 10_000

_Moment = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Line = Annotated[str, msgspec.Meta(max_length=8 << 10)]


class _Window(msgspec.Struct, frozen=True):
    begin_ns: _Moment
    end_ns: _Moment


class _Piece(msgspec.Struct, frozen=True):
    begin_ns: _Moment
    end_ns: _Moment
    lost_ratio: _Ratio


class _Impact(msgspec.Struct, frozen=True):
    lost_ns: _Moment
    lost_ratio: Annotated[float, msgspec.Meta(ge=0)]


class _Incident(msgspec.Struct, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    cause: _Line
    severity: _Line
    start_ns: _Moment
    headline: _Line
    impact: _Impact
    end_ns: _Moment | None = None
    timeline: Annotated[list[_Piece], msgspec.Meta(max_length=1000)] = []


class _Diagnosis(msgspec.Struct, frozen=True):
    window: _Window
    incidents: Annotated[list[_Incident], msgspec.Meta(max_length=_MAX_INCIDENTS)]
    verdicts: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MAX_INCIDENTS)] = []


class Diagnosed(msgspec.Struct, frozen=True):
    """A node's answer, as far as the page draws it."""

    node: Identity
    headline: _Line
    diagnosis: _Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The time range of all nodes in equal columns. begin_ns: Unix ns."""

    begin_ns: int
    column_ns: int

    def spread(self, begin_ns: int, end_ns: int, ratio: float) -> Iterator[tuple[int, float]]:
        """The columns of a time range, and the part of each that was lost."""
        first = max(0, (begin_ns - self.begin_ns) // self.column_ns)
        last = min(COLUMNS - 1, (end_ns - 1 - self.begin_ns) // self.column_ns)
        for column in range(first, last + 1):
            at_ns = self.begin_ns + column * self.column_ns
            inside_ns = min(end_ns, at_ns + self.column_ns) - max(begin_ns, at_ns)
            yield column, ratio * max(0, inside_ns) / self.column_ns


async def ask_diagnosed(client: NodeClient, since: str) -> Diagnosed:
    """Ask a node what it found in the last `since`; "": in its entire recording.

    Raises:
        NodeError: there is no answer.
    """
    question = f"?{urlencode({'since': since})}" if since else ""
    return await client.json(f"/api/v2/explain{question}", Diagnosed)


def heat_map(nodes: Sequence[Node], found: FleetAnswer[Diagnosed], now_ns: int) -> Object:
    """Each node that answered, worst first, with what it lost when; times are by the clock of each node.

    A cell is [column, per mille of the column's wall time that was lost, the incident that most of it is of]: of the
    process that was affected most, as streams and processes are never summed. Nodes of which nothing can be said stand
    before those that lost nothing. Members that are as usual are left out (`_USUAL`): of 10,000 nodes most are. nodes:
    numbers are places among these.
    """
    names = names_of([(reply.node, reply.answer.node) for reply in found.answered])
    answered = [reply for reply in found.answered if reply.node in names.label]
    columns = _columns([reply.answer.diagnosis.window for reply in answered])
    number = {node: place for place, node in enumerate(nodes)}
    headlines: dict[str, int] = {}  # what many nodes say alike stands there once
    rows = [
        _row(reply.answer, columns, headlines)
        | {"number": number[reply.node], "node": names.label[reply.node], "address": str(reply.node)}
        for reply in answered
    ]
    rows.sort(key=lambda row: (row["rank"], -row["lost_ns"], row["is_judged"], row["node"]))
    missing = (*found.missing, *names.repeated)
    return {
        "now_ns": now_ns,
        "begin_ns": columns.begin_ns,
        "column_ns": columns.column_ns,
        "columns": COLUMNS,
        "asked": len(nodes),
        "nodes": [_short(row) for row in rows],
        "said": list(headlines),
        "missing": list(_missing(missing)),
        "missing_count": len(missing),
        "partial": bool(missing),
        "notes": list(names.notes),
    }


def _short(row: Object) -> Object:
    usual = _USUAL | {"address": row["node"]}
    return {name: value for name, value in row.items() if name != "rank" and value != usual.get(name)}


def _columns(windows: Sequence[_Window]) -> _Columns:
    begin_ns = min((window.begin_ns for window in windows), default=0)
    end_ns = max((window.end_ns for window in windows), default=0)
    return _Columns(begin_ns=begin_ns, column_ns=max(1, -(-(end_ns - begin_ns) // COLUMNS)))


def _row(answer: Diagnosed, columns: _Columns, headlines: dict[str, int]) -> Object:
    found = answer.diagnosis
    worst = min(
        found.incidents, key=lambda incident: (_rank(incident.severity), -incident.impact.lost_ns), default=None
    )
    row: Object = {
        "rank": _rank(worst.severity if worst else ""),
        "lost_ns": max((incident.impact.lost_ns for incident in found.incidents), default=0),
        "first": (found.window.begin_ns - columns.begin_ns) // columns.column_ns,
        "last": (found.window.end_ns - 1 - columns.begin_ns) // columns.column_ns,
        "is_judged": bool(found.verdicts or found.incidents),
        "incidents": len(found.incidents),
        "cells": _cells(found.incidents, found.window, columns),
    }
    if worst is None:
        return row | {"said": headlines.setdefault(answer.headline, len(headlines))}
    about = {"number": worst.number, "cause": worst.cause, "severity": worst.severity, "headline": worst.headline}
    return row | {"worst": about}


def _rank(severity: str) -> int:
    """Rank of a severity, 0 the worst; an unknown one comes last."""
    return _WORST_FIRST.index(severity) if severity in _WORST_FIRST else len(_WORST_FIRST)


def _cells(incidents: Sequence[_Incident], window: _Window, columns: _Columns) -> list[list[int]]:
    """For each column with lost time, the incident whose affected process lost most of it."""
    most: dict[int, tuple[int, int]] = {}
    for incident in incidents:
        lost = [0.0] * COLUMNS
        for piece in incident.timeline or _whole(incident, window):
            for column, ratio in columns.spread(piece.begin_ns, piece.end_ns, piece.lost_ratio):
                lost[column] += ratio
        for column, ratio in enumerate(lost):
            permille = round(min(ratio, 1.0) * _PERMILLE)
            if permille > most.get(column, (0, 0))[0]:
                most[column] = (permille, incident.number)
    return [[column, *cell] for column, cell in sorted(most.items())]


def _whole(one: _Incident, window: _Window) -> list[_Piece]:
    """The timeline of an incident without one: even over its duration; none without lost time."""
    if not one.impact.lost_ns:
        return []
    begin_ns = one.start_ns or window.begin_ns
    end_ns = one.end_ns or window.end_ns
    return [_Piece(begin_ns, max(begin_ns, end_ns), min(1.0, one.impact.lost_ratio))]


def _missing(missing: Sequence[Missing]) -> Iterator[Object]:
    """Missing nodes grouped by reason, largest group first."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for missing_node in missing:
        by_reason.setdefault((missing_node.reason, missing_node.hint), []).append(str(missing_node.node))
    for (reason, hint), nodes in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        yield {"reason": reason, "hint": hint, "count": len(nodes), "nodes": nodes[:20]}
