"""From evidence to a diagnosis: every case is shown to every rule; what nobody explains is said to be unexplained."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO, WORK_RATIO, find_cases
from ingero.diagnose.causes.cpu import cpu_steal
from ingero.diagnose.causes.cpu.cold_caches import colder_ns
from ingero.diagnose.causes.gpu.growing_work import has_more_to_do
from ingero.diagnose.causes.host_code.extra_computing import is_same_work
from ingero.diagnose.causes.rule import Rule, all_rules
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import SAMPLES
from ingero.diagnose.findings import (
    UNEXPLAINED,
    Bucket,
    Diagnosis,
    Fact,
    Finding,
    FindingKind,
    Fix,
    NotEvaluated,
    Part,
)
from ingero.diagnose.incidents.blind_spots import blind_spots, can_see, silent, unseen
from ingero.diagnose.incidents.case_finding import Found
from ingero.diagnose.incidents.grouping import merge
from ingero.diagnose.incidents.process_verdicts import process_verdicts
from ingero.diagnose.incidents.subsumption import explained_ratio, joined
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS, MIN_RATIO, UNOWNED_RATIO
from ingero.diagnose.node_by_node import as_one, reader_of
from ingero.diagnose.profile.verdict import not_in_a_profile
from ingero.program import command
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_percent

logger = logging.getLogger(__name__)

MIN_SHARE = 0.10  # of the lost time, before a cause is named
_LEAST_NS = MIN_LOST_NS // 2  # of a cause; a lost time that is just long enough to be told has one cause, not several
_MAIN_SHARE = 1 / 3  # of a lost time that is certain, before what owns most of it is named however little that is
EXPLAINED = 0.80  # of the lost time by all causes together, else the verdict is "unexplained"
FAILED = "its check failed"  # begin of the reason
SLOWER_RATIO = 0.10  # of wall time by which a CPU that others share does the same work more slowly
_OF_THE_PROGRAM = frozenset(("run", "sleep"))  # states that a line of the program explains


def diagnose(reader: Reader, window: Window) -> Diagnosis:
    """What happened in the window, and why, on each node. Reads only; the same recording gives the same answer."""
    nodes = reader.nodes()
    if len(nodes) < 2:
        return diagnose_evidence(Evidence(reader, window), all_rules())
    found = {}
    for node in nodes:
        with reader_of(reader, node, window) as alone:
            if alone:
                found[node] = diagnose_evidence(Evidence(*alone), all_rules())
    return as_one(window, found)


def diagnose_evidence(evidence: Evidence, rules: Iterable[Rule], cases: Sequence[Case] | None = None) -> Diagnosis:
    """The same with chosen rules. cases: what the rules are shown, instead of all that is there."""
    rules = tuple(rules)
    usable = [rule for rule in rules if not evidence.missing(rule.needs)]
    not_evaluated = list(blind_spots(evidence, rules))
    cases = find_cases(evidence) if cases is None else cases
    for case in cases:
        case.siblings = cases
    failed: dict[str, str] = {}
    found = [Found(finding, case) for case in cases for finding in _explain(case, usable, failed)]
    for case in cases:
        case.siblings = ()  # a ring of references keeps the arrays of a look until the collector runs
    found = [_with_blind_spots(one, evidence, rules) for one in found]
    seen = [one for rule in usable if rule.watch for one in _guarded(rule, rule.watch(evidence), failed)]
    if evidence.profiles.reports:
        not_evaluated = not_in_a_profile(rules)
    not_evaluated += [NotEvaluated(cause=cause, reason=reason) for cause, reason in failed.items()]
    found += [Found(replace(one, window=one.window or evidence.window), None) for one in seen]
    incidents = merge(found)
    return Diagnosis(
        window=evidence.window,
        incidents=incidents,
        verdicts=() if evidence.is_live else tuple(process_verdicts(evidence, incidents)),
        not_evaluated=tuple(silent(not_evaluated, incidents)),
        not_traced=evidence.not_traced,
        profiles=evidence.profiles if evidence.profiles.reports else None,
    )


def _with_blind_spots(found: Found, evidence: Evidence, rules: Iterable[Rule]) -> Found:
    """What is unexplained says what could not be seen of it."""
    finding = found.finding
    place = max(finding.claims, key=lambda bucket: finding.claims[bucket], default=None)
    if finding.cause != UNEXPLAINED or place is None:
        return found
    windows = (found.case.window, *found.case.baselines) if found.case else ()
    reasons = "; ".join(unseen(evidence, rules, place.part, windows))
    text = f"; not recorded: {reasons}" if reasons else ""
    facts = {**finding.evidence, "not traced": reasons or None}
    return replace(found, finding=replace(finding, summary=finding.summary + text, evidence=facts))


def _guarded(rule: Rule, findings: Iterable[Finding], failed: dict[str, str]) -> Iterator[Finding]:
    """The findings of a rule; one that fails costs only itself, and that is said."""
    try:
        yield from findings
    except Exception as error:
        is_debugging = logger.isEnabledFor(logging.DEBUG)  # a recording made by hand may be the reason, too
        logger.warning("rule %s failed: %.200r", rule.cause, error, exc_info=is_debugging)
        failed[rule.cause] = f"{FAILED} ({type(error).__name__}: {error}); please report it"


def _explain(case: Case, rules: Iterable[Rule], failed: dict[str, str]) -> list[Finding]:
    """The findings of one case, or that it is unexplained."""
    asked = (rule for rule in rules if rule.explains_start or not case.is_recorders_start)
    for rule in asked:
        for finding in _guarded(rule, rule.find(case), failed) if rule.find and can_see(rule, case) else ():
            case.accept(finding)
    least_ratio = BOTTLENECK_RATIO if case.kind is FindingKind.BOTTLENECK else MIN_RATIO
    # the whole lost time is worth its surroundings
    least_ns = max(MIN_SHARE * case.lost_ns, least_ratio * case.wall_ns, _LEAST_NS)
    findings = joined(case.findings, case.amount)
    for part in (one for one in findings if not one.is_whole):
        case.give_back(part)
    findings = [one for one in findings if one.is_whole]
    told = [one for one in findings if one.lost_ns >= _least_ns(case, one, least_ns)] or _main(case, findings)
    named = [one for one in told if not _is_its_work(case, one)]
    hidden = [one for one in findings if one.kind is FindingKind.EVENT and not one.claims]
    if case.is_recorders_start:
        return named + hidden
    explained = explained_ratio(case)
    rest_ns = (1 - explained) * case.lost_ns
    worth_ns = max(least_ratio, UNOWNED_RATIO) * case.around_ns
    if explained >= EXPLAINED or rest_ns < worth_ns or rest_ns - _no_fault_ns(case) < worth_ns:
        return named + hidden
    if not case.knows_idle and case.kind is FindingKind.BOTTLENECK:
        return named + hidden  # what a step usually consists of is no lost time by itself
    rest = _unexplained(case, named, explained)
    return named if _is_its_work(case, rest) else [rest]


def _least_ns(case: Case, finding: Finding, least_ns: float) -> float:
    """Lost time from which on a finding is told."""
    return max(least_ns, finding.least_ratio * case.around_ns)


def _main(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The weightiest cause of an incident that lost enough, but by several things at once, none of them that much.

    What two healthy minutes differ by is no cause: threads of a job in each other's way, a CPU that takes longer. Nor
    does what was stolen make little of something else enough.
    """
    sure = (one for one in findings if not one.least_ratio and 2 * _computed_ns(one) <= one.lost_ns)
    most = max(sure, key=lambda one: one.lost_ns, default=None)
    stolen_ns = sum(one.lost_ns for one in findings if one.cause == cpu_steal.CAUSE)
    is_enough = case.kind is FindingKind.INCIDENT and case.lost_ns - stolen_ns >= UNOWNED_RATIO * case.around_ns
    return [most] if most and is_enough and most.lost_ns >= _MAIN_SHARE * case.lost_ns else []


def _computed_ns(finding: Finding) -> int:
    """Of what it claims, the time on a CPU."""
    return sum(ns for bucket, ns in finding.claims.items() if bucket.state == "run")


def _no_fault_ns(case: Case) -> float:
    """Of what is left, the time that a CPU took longer for the same work, as usual, and the GPU for more work."""
    slower_ns = sum(max(case.left.get(Bucket(part, "run"), 0), 0) for part in (Part.IDLE, Part.LAUNCH))
    device_ns = max(case.left.get(Bucket(Part.GPU, DEVICE), 0), 0)
    found = 0.0
    if case.kind is FindingKind.INCIDENT and slower_ns:
        most_ns = SLOWER_RATIO * case.wall_ns if is_same_work(case) else colder_ns(case)
        found += min(slower_ns, most_ns)
    return found + device_ns if device_ns and has_more_to_do(case) else found


def _is_its_work(case: Case, finding: Finding) -> bool:
    """Whether a bottleneck is only the share of its time that a loop of small kernels computes and launches anyway."""
    if case.kind is not FindingKind.BOTTLENECK or finding.is_apart:
        return False
    return 2 * _computed_ns(finding) > finding.lost_ns and finding.lost_ns < WORK_RATIO * case.wall_ns


def _unexplained(case: Case, named: list[Finding], explained: float) -> Finding:
    facts: dict[str, Fact] = {f"partly {one.cause} (ratio)": one.lost_ns / max(case.lost_ns, 1) for one in named}
    where = max(case.left, key=lambda bucket: case.left[bucket], default=None)
    place = f", most of it {_place(where, knows_idle=case.knows_idle)}" if where else ""
    rest = format_percent(1 - explained)
    return Finding(
        cause=UNEXPLAINED,
        summary=f"{case.who} lost {case.amount(case.lost_ns)}, {rest} of it unexplained{place}",
        claims=_rest(case.left),
        root=str(case.process.pid),
        fixes=_way_on(case.evidence, where),
        evidence=facts | {"explained (ratio)": explained},
    )


def _way_on(evidence: Evidence, where: Bucket | None) -> tuple[Fix, ...]:
    """How to record what would tell more."""
    if where is None or where.state not in _OF_THE_PROGRAM or not evidence.missing((SAMPLES,)):
        return ()
    return (
        Fix(
            text="record with stacks: they show the line",
            command=command("trace", "--stack=true", as_root=True),
        ),
    )


def _rest(left: Mapping[Bucket, int]) -> dict[Bucket, int]:
    return {bucket: ns for bucket, ns in left.items() if ns > 0}


def _place(bucket: Bucket, *, knows_idle: bool) -> str:
    words = {
        "idle": "while the GPU was idle",
        "launch": "while launching",
        "gpu": "on the GPU",
        "return_delay": "in the sync return delay",
    }
    if not knows_idle:
        host = "in the host time of the step"
        words |= {"idle": host, "launch": host, "gpu": "blocked on the GPU"}
    return f"{words[bucket.part.value]} ({bucket.state})"
