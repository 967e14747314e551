"""The diagnosis of a recording of several nodes: each node is diagnosed alone, and the answers are merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from ingero.diagnose.findings import Diagnosis, NotEvaluated
from ingero.diagnose.profile.report import Profiles
from ingero.store.reader import Reader
from ingero.store.records import Window


@contextmanager
def reader_of(reader: Reader, node: str, window: Window) -> Iterator[tuple[Reader, Window] | None]:
    """A reader of one node alone, and the part of the window in which it recorded; None where it did not."""
    with reader.of_node(node) as alone:
        whole = alone.time_range()
        kept_ns = alone.kept_since_ns(whole) if whole else 0
        begin_ns = max(window.begin_ns, kept_ns)
        end_ns = min(window.end_ns, whole.end_ns) if whole else 0
        yield (alone, Window(begin_ns=begin_ns, end_ns=end_ns)) if begin_ns < end_ns else None


def merge_nodes(window: Window, found: Mapping[str, Diagnosis]) -> Diagnosis:
    """One diagnosis from those of all nodes by name: incidents worst first, numbered by begin, each with its node."""
    incidents = [replace(one, node=node) for node, diagnosis in found.items() for one in diagnosis.incidents]
    incidents.sort(key=lambda incident: (incident.start_ns, incident.node, incident.cause))
    numbered = [replace(incident, number=number) for number, incident in enumerate(incidents, 1)]
    profiles = [diagnosis.profiles for diagnosis in found.values() if diagnosis.profiles]
    return Diagnosis(
        window=window,
        incidents=tuple(sorted(numbered, key=lambda one: (-one.severity, -one.lost_ns, one.number))),
        verdicts=tuple(replace(one, node=node) for node, diagnosis in found.items() for one in diagnosis.verdicts),
        not_evaluated=tuple(_not_evaluated(found)),
        not_traced=_not_traced(found),
        profiles=Profiles(
            reports=tuple(report for profile in profiles for report in profile.reports),
            collectives=tuple(collective for profile in profiles for collective in profile.collectives),
        )
        if profiles
        else None,
    )


def _not_evaluated(found: Mapping[str, Diagnosis]) -> Iterator[NotEvaluated]:
    nodes_of: dict[NotEvaluated, list[str]] = {}
    for node, diagnosis in found.items():
        for entry in diagnosis.not_evaluated:
            nodes_of.setdefault(entry, []).append(node)
    for entry, nodes in nodes_of.items():
        is_everywhere = len(nodes) == len(found)
        yield entry if is_everywhere else replace(entry, reason=f"on {', '.join(nodes)}: {entry.reason}")


def _not_traced(found: Mapping[str, Diagnosis]) -> dict[str, str]:
    nodes_of: dict[tuple[str, str], list[str]] = {}
    for node, diagnosis in found.items():
        for source, reason in diagnosis.not_traced.items():
            nodes_of.setdefault((source, reason), []).append(node)
    texts: dict[str, list[str]] = {}
    for (source, reason), nodes in nodes_of.items():
        is_everywhere = len(nodes) == len(found)
        texts.setdefault(source, []).append(reason if is_everywhere else f"on {', '.join(nodes)}: {reason}")
    return {source: "; ".join(reasons) for source, reasons in texts.items()}
