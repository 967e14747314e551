"""A recording of several nodes: each is diagnosed alone, blind to the others, and the answers become one."""

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
    """A node's own reader, and the part of the window in which it recorded; None where it did not."""
    with reader.of_node(node) as alone:
        whole = alone.time_range()
        kept_ns = alone.kept_since_ns(whole) if whole else 0
        begin_ns = max(window.begin_ns, kept_ns)
        end_ns = min(window.end_ns, whole.end_ns) if whole else 0
        yield (alone, Window(begin_ns=begin_ns, end_ns=end_ns)) if begin_ns < end_ns else None


def as_one(window: Window, found: Mapping[str, Diagnosis]) -> Diagnosis:
    """The diagnoses of all nodes, by name: incidents worst first and numbered by their begin, each with its node."""
    incidents = [replace(one, node=node) for node, its in found.items() for one in its.incidents]
    incidents.sort(key=lambda one: (one.start_ns, one.node, one.cause))
    numbered = [replace(one, number=number) for number, one in enumerate(incidents, 1)]
    profiles = [its.profiles for its in found.values() if its.profiles]
    return Diagnosis(
        window=window,
        incidents=tuple(sorted(numbered, key=lambda one: (-one.severity, -one.lost_ns, one.number))),
        verdicts=tuple(replace(one, node=node) for node, its in found.items() for one in its.verdicts),
        not_evaluated=tuple(_not_evaluated(found)),
        not_traced=_not_traced(found),
        profiles=Profiles(
            reports=tuple(report for one in profiles for report in one.reports),
            collectives=tuple(together for one in profiles for together in one.collectives),
        )
        if profiles
        else None,
    )


def _not_evaluated(found: Mapping[str, Diagnosis]) -> Iterator[NotEvaluated]:
    where: dict[NotEvaluated, list[str]] = {}
    for node, its in found.items():
        for one in its.not_evaluated:
            where.setdefault(one, []).append(node)
    for one, nodes in where.items():
        yield one if len(nodes) == len(found) else replace(one, reason=f"on {', '.join(nodes)}: {one.reason}")


def _not_traced(found: Mapping[str, Diagnosis]) -> dict[str, str]:
    where: dict[tuple[str, str], list[str]] = {}
    for node, its in found.items():
        for source, reason in its.not_traced.items():
            where.setdefault((source, reason), []).append(node)
    texts: dict[str, list[str]] = {}
    for (source, reason), nodes in where.items():
        is_everywhere = len(nodes) == len(found)
        texts.setdefault(source, []).append(reason if is_everywhere else f"on {', '.join(nodes)}: {reason}")
    return {source: "; ".join(reasons) for source, reasons in texts.items()}
