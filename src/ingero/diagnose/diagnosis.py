"""From evidence to a diagnosis: each rule examines each case, and lost time that no rule claims is unexplained."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO, WORK_RATIO, find_cases
from ingero.diagnose.causes.cpu import cpu_steal, self_oversubscription
from ingero.diagnose.causes.cpu.cold_caches import cold_cache_ns
from ingero.diagnose.causes.gpu.growing_work import has_growing_work
from ingero.diagnose.causes.host_code.extra_computing import computes_at_same_places
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
from ingero.diagnose.incidents.blind_spots import blind_spots, can_see, drop_reported_blind_spots, why_not_evaluated
from ingero.diagnose.incidents.case_finding import CaseFinding
from ingero.diagnose.incidents.grouping import merge_findings
from ingero.diagnose.incidents.process_verdicts import process_verdicts
from ingero.diagnose.incidents.subsumption import explained_ratio, subsume
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS, MIN_LOST_RATIO, NORMAL_VARIATION_RATIO
from ingero.diagnose.node_by_node import merge_nodes, reader_of
from ingero.diagnose.profile.verdict import not_in_a_profile
from ingero.program import command
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_percent

logger = logging.getLogger(__name__)

# Policies of what is reported: docs/adr/0027.
MIN_CAUSE_SHARE = 0.10  # of the lost time, before a cause is named
_MIN_CAUSE_NS = MIN_LOST_NS // 2  # of a cause: lost time that is just long enough to be reported has a single cause
_MIN_LARGEST_SHARE = 1 / 3  # of clearly lost time, from which its largest cause is named even if no cause is enough
MIN_EXPLAINED_SHARE = 0.80  # of the lost time by all causes together, else the verdict is "unexplained"
FAILED = "its check failed"  # how the reason begins
MAX_CPU_SLOWDOWN_RATIO = 0.10  # of wall time: a shared CPU, or own threads on it, may cost this much without a fault
_PROGRAM_STATES = frozenset(("run", "sleep"))  # thread states that a line of the program explains


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
    return merge_nodes(window, found)


def diagnose_evidence(evidence: Evidence, rules: Iterable[Rule], cases: Sequence[Case] | None = None) -> Diagnosis:
    """The diagnosis of one node by these rules. cases: what the rules examine, instead of every case of the window."""
    rules = tuple(rules)
    usable = [rule for rule in rules if not evidence.why_unavailable(rule.needs)]
    not_evaluated = list(blind_spots(evidence, rules))
    cases = find_cases(evidence) if cases is None else cases
    for case in cases:
        case.siblings = cases
    failed: dict[str, str] = {}
    found = [CaseFinding(finding, case) for case in cases for finding in _explain(case, usable, failed)]
    for case in cases:
        case.siblings = ()  # a reference cycle would keep the arrays of this pass until the garbage collector runs
    found = [_with_blind_spots(case_finding, evidence, rules) for case_finding in found]
    events = [
        finding for rule in usable if rule.find_events for finding in _guarded(rule, rule.find_events(evidence), failed)
    ]
    if evidence.profiles.reports:
        not_evaluated = not_in_a_profile(rules)
    not_evaluated += [NotEvaluated(cause=cause, reason=reason) for cause, reason in failed.items()]
    found += [CaseFinding(replace(event, window=event.window or evidence.window), None) for event in events]
    incidents = merge_findings(found)
    return Diagnosis(
        window=evidence.window,
        incidents=incidents,
        verdicts=() if evidence.is_live else tuple(process_verdicts(evidence, incidents)),
        not_evaluated=tuple(drop_reported_blind_spots(not_evaluated, incidents)),
        not_traced=evidence.not_traced,
        profiles=evidence.profiles if evidence.profiles.reports else None,
    )


def _with_blind_spots(found: CaseFinding, evidence: Evidence, rules: Iterable[Rule]) -> CaseFinding:
    """An unexplained finding with the reasons why causes of its largest bucket could not be checked."""
    finding = found.finding
    largest = max(finding.claims, key=lambda bucket: finding.claims[bucket], default=None)
    if finding.cause != UNEXPLAINED or largest is None:
        return found
    windows = (found.case.window, *found.case.baseline_windows) if found.case else ()
    reasons = "; ".join(why_not_evaluated(evidence, rules, largest.part, windows))
    text = f"; not recorded: {reasons}" if reasons else ""
    facts = {**finding.evidence, "not traced": reasons or None}
    return replace(found, finding=replace(finding, summary=finding.summary + text, evidence=facts))


def _guarded(rule: Rule, findings: Iterable[Finding], failed: dict[str, str]) -> Iterator[Finding]:
    """The findings of a rule; a rule that fails loses only its own findings, and `failed` gets the reason."""
    try:
        yield from findings
    except Exception as error:
        is_debugging = logger.isEnabledFor(logging.DEBUG)  # a manipulated recording can be the reason too
        logger.warning("rule %s failed: %.200r", rule.cause, error, exc_info=is_debugging)
        failed[rule.cause] = f"{FAILED} ({type(error).__name__}: {error}); please report it"


def _explain(case: Case, rules: Iterable[Rule], failed: dict[str, str]) -> list[Finding]:
    """The reportable findings of one case; where they explain too little of its lost time, an unexplained finding."""
    asked = (rule for rule in rules if rule.covers_agent_start or not case.is_agent_start)
    for rule in asked:
        for finding in _guarded(rule, rule.explain(case), failed) if rule.explain and can_see(rule, case) else ():
            case.accept(finding)
    min_wall_ratio = BOTTLENECK_RATIO if case.kind is FindingKind.BOTTLENECK else MIN_LOST_RATIO
    # against the case alone: its lost time as a whole has already been judged against the time around it
    min_ns = max(MIN_CAUSE_SHARE * case.lost_ns, min_wall_ratio * case.wall_ns, _MIN_CAUSE_NS)
    findings = subsume(case.findings, case.amount)
    partial_findings = [finding for finding in findings if not finding.stands_alone]
    for partial in partial_findings:
        case.release_claims(partial)
    findings = [finding for finding in findings if finding.stands_alone]
    large = [finding for finding in findings if finding.lost_ns >= _min_lost_ns(case, finding, min_ns)]
    reportable = large or _largest_contributor(case, findings)
    named = [finding for finding in reportable if not _is_normal_for_the_loop(case, finding)]
    masked = [finding for finding in findings if finding.kind is FindingKind.EVENT and not finding.claims]
    if case.is_agent_start:
        return named + masked
    explained = explained_ratio(case)
    rest_ns = (1 - explained) * case.lost_ns
    min_rest_ns = max(min_wall_ratio, NORMAL_VARIATION_RATIO) * case.surrounding_wall_ns
    is_explained = explained >= MIN_EXPLAINED_SHARE or rest_ns < min_rest_ns
    benign_ns = _benign_slowdown_ns(case) + (0.0 if named else _own_crowding_ns(case, partial_findings))
    if is_explained or rest_ns - benign_ns < min_rest_ns:
        return named + masked
    if not case.knows_idle and case.kind is FindingKind.BOTTLENECK:
        return named + masked  # what a step usually consists of is no lost time by itself
    rest = _unexplained(case, named, explained)
    if _is_normal_for_the_loop(case, rest):
        return named
    return [*filter(_is_of_host, named), rest] if _is_rest_unseen(case) else [rest]


def _is_of_host(finding: Finding) -> bool:
    """Whether a finding is about lost time of the host alone."""
    return all(bucket.part is not Part.GPU for bucket in finding.claims)


def _is_rest_unseen(case: Case) -> bool:
    """Whether the lost time of the host is explained, and the rest is the GPU's, whose launches were not traced."""
    if case.knows_launches:
        return False
    host_ns = sum(ns for bucket, ns in case.buckets.items() if bucket.part is not Part.GPU and ns > 0)
    rest_ns = sum(ns for bucket, ns in case.unclaimed.items() if bucket.part is not Part.GPU and ns > 0)
    return rest_ns <= (1 - MIN_EXPLAINED_SHARE) * host_ns


def _min_lost_ns(case: Case, finding: Finding, min_ns: float) -> float:
    """The lost time from which a finding is reported; min_ns: from which any finding of the case is."""
    return max(min_ns, finding.min_wall_ratio * case.surrounding_wall_ns)


def _largest_contributor(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The largest cause of an incident that lost enough to several causes at once, none of them large enough alone.

    Normal variation between healthy minutes is no cause: threads of one job in each other's way, a slower CPU. Nor
    does steal time count toward what is enough for another cause.
    """
    certain = (one for one in findings if not one.min_wall_ratio and 2 * _on_cpu_ns(one) <= one.lost_ns)
    largest = max(certain, key=lambda finding: finding.lost_ns, default=None)
    steal_ns = sum(finding.lost_ns for finding in findings if finding.cause == cpu_steal.CAUSE)
    min_case_ns = NORMAL_VARIATION_RATIO * case.surrounding_wall_ns
    is_enough = case.kind is FindingKind.INCIDENT and case.lost_ns - steal_ns >= min_case_ns
    return [largest] if largest and is_enough and largest.lost_ns >= _MIN_LARGEST_SHARE * case.lost_ns else []


def _on_cpu_ns(finding: Finding) -> int:
    """The on-CPU part of the lost time that a finding claims."""
    return sum(ns for bucket, ns in finding.claims.items() if bucket.state == "run")


def _benign_slowdown_ns(case: Case) -> float:
    """Unclaimed time without a fault: a CPU that normally takes this much longer, a GPU that has more work."""
    slower_ns = sum(max(case.unclaimed.get(Bucket(part, "run"), 0), 0) for part in (Part.IDLE, Part.LAUNCH))
    gpu_ns = max(case.unclaimed.get(Bucket(Part.GPU, GPU_EXECUTION), 0), 0)
    benign_ns = 0.0
    if case.kind is FindingKind.INCIDENT and slower_ns:
        most_ns = MAX_CPU_SLOWDOWN_RATIO * case.wall_ns if computes_at_same_places(case) else cold_cache_ns(case)
        benign_ns += min(slower_ns, most_ns)
    return benign_ns + gpu_ns if gpu_ns and has_growing_work(case) else benign_ns


def _own_crowding_ns(case: Case, partial_findings: Iterable[Finding]) -> float:
    """Lost time in which threads of the job had the CPU, though nothing shows that they use more of it than before.

    Where they sit on the CPUs differs from one healthy minute to the next.
    """
    crowded_ns = sum(one.lost_ns for one in partial_findings if one.cause == self_oversubscription.CAUSE)
    return min(crowded_ns, MAX_CPU_SLOWDOWN_RATIO * case.wall_ns)


def _is_normal_for_the_loop(case: Case, finding: Finding) -> bool:
    """Whether a bottleneck is only the share of time that a loop of small kernels normally computes and launches."""
    if case.kind is not FindingKind.BOTTLENECK or finding.is_outside_loop:
        return False
    return 2 * _on_cpu_ns(finding) > finding.lost_ns and finding.lost_ns < WORK_RATIO * case.wall_ns


def _unexplained(case: Case, named: list[Finding], explained: float) -> Finding:
    facts: dict[str, Fact] = {
        f"partly {finding.cause} (ratio)": finding.lost_ns / max(case.lost_ns, 1) for finding in named
    }
    where = max(case.unclaimed, key=lambda bucket: case.unclaimed[bucket], default=None)
    place = f", most of it {_place(where, knows_idle=case.knows_idle)}" if where else ""
    rest = format_percent(1 - explained)
    return Finding(
        cause=UNEXPLAINED,
        summary=f"{case.who} lost {case.amount(case.lost_ns)}, {rest} of it unexplained{place}",
        claims=_positive(case.unclaimed),
        root=str(case.process.pid),
        fixes=_recording_fixes(case.evidence, where),
        evidence=facts | {"explained (ratio)": explained},
    )


def _recording_fixes(evidence: Evidence, where: Bucket | None) -> tuple[Fix, ...]:
    """How to record what would explain more of the lost time in a bucket."""
    if where is None or where.state not in _PROGRAM_STATES or not evidence.why_unavailable((SAMPLES,)):
        return ()
    return (
        Fix(
            text="record with stacks: they show the line",
            command=command("trace", "--stack=true", as_root=True),
        ),
    )


def _positive(unclaimed: Mapping[Bucket, int]) -> dict[Bucket, int]:
    return {bucket: ns for bucket, ns in unclaimed.items() if ns > 0}


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
