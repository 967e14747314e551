"""Ranks wait in communication for a rank that does not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases import Case
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.hung_ranks import HungRanks, disagreement, hung_ranks
from ingero.diagnose.model import CodeLine, Culprit, Finding, FindingKind, Fix, Link, Part, Severity
from ingero.diagnose.rule import Rule
from ingero.identity import ending
from ingero.store.records import Window
from ingero.units import format_ns

CAUSE = "nccl-hang"
HANGS_LONGER = 1.5  # than it was seen to: open calls are looked at once a second


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Hung ranks that agree, with those that are missing and what those are doing."""
    for ranks in hung_ranks(evidence):
        if disagreement(evidence, ranks) is None:
            yield _finding(evidence, ranks)


def find(case: Case) -> Iterator[Finding]:
    """What such a rank lost, once it went on."""
    number = case.process.process
    for ranks in hung_ranks(case.evidence):
        is_here = (
            number in ranks.inside and ranks.since_ns < case.window.end_ns and ranks.seen_ns > case.window.begin_ns
        )
        length = ranks.seen_ns - ranks.inside[number].since_ns if is_here else 0
        claims = case.take((Part.DEVICE,), (DEVICE,), HANGS_LONGER * length) if is_here else {}
        if claims and disagreement(case.evidence, ranks) is None:
            yield replace(_finding(case.evidence, ranks), claims=claims)


def _finding(evidence: Evidence, ranks: HungRanks) -> Finding:
    inside = [evidence.rank_name(one) for one in ranks.inside]
    missing = [evidence.rank_name(one) for one in ranks.missing]
    length = ranks.seen_ns - ranks.since_ns
    first = next(iter(ranks.inside.values()))
    last = ranks.last.get(first.process)
    collective = f" after {last.op}" if last else ""
    who = f"{' and '.join(missing)} did not come" if missing else "all ranks are inside: a device or a link hangs"
    return Finding(
        cause=CAUSE,
        resource="collective",
        root=",".join(missing) or "device",
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL,
        window=Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns + 1),
        summary=f"{' and '.join(inside)} waited inside {first.name}{collective} for {format_ns(length)}; "
        f"{who}{_doing(evidence, ranks)}",
        culprits=tuple(
            Culprit(pid=evidence.processes[one].pid, name=evidence.processes[one].name) for one in ranks.missing
        ),
        line=_line(evidence, ranks),
        chain=(
            Link(
                text=f"{' and '.join(inside)} wait in {first.name}",
                seen_ns=length,
                structure="open calls of ranks that share a communicator",
                order="the last of them went in before nobody got ahead any more",
            ),
        ),
        fixes=(
            Fix(text="see where the missing rank is", command=f"py-spy dump --pid {_pid(evidence, ranks)}"),
            Fix(text="let NCCL say what it waits for", command="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 NCCL_DEBUG=INFO"),
        ),
        absorbs=ranks.missing,
        evidence={"inside": len(inside), "missing": len(missing), "open (ns)": length},
    )


def _pid(evidence: Evidence, ranks: HungRanks) -> int:
    return evidence.processes[(*ranks.missing, *ranks.inside)[0]].pid


def _doing(evidence: Evidence, ranks: HungRanks) -> str:
    """What is known of the first missing rank."""
    if not ranks.missing:
        return ""
    process = evidence.processes[ranks.missing[0]]
    if process.exit_ns is not None:
        return f": it {ending(process.exit_code)}"
    if any(stop.end_ns > ranks.since_ns for stop in evidence.stopped_seconds(ranks.missing[0])):
        return ": it was stopped"
    line = _line(evidence, ranks)
    return f": it was last seen in {line}" if line else ""


def _line(evidence: Evidence, ranks: HungRanks) -> CodeLine | None:
    """Where the missing rank is, from its samples; else where the first one inside waits."""
    if ranks.missing:
        return evidence.sampled_line(Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns), ranks.missing[0])
    stack = next(iter(ranks.inside.values())).stack_hash
    return evidence.own_line(stack) if stack else None


RULE = Rule(
    cause=CAUSE,
    title="a rank is missing in a collective",
    order=19,
    needs=("in_flight", "communicators", "NCCL"),
    shows="which ranks are inside since when, which are missing, and the line where a missing one is",
    limits="ranks on nodes whose recordings are not merged are not seen",
    find=find,
    watch=watch,
)
