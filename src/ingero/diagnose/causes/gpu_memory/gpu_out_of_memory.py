"""A request for GPU memory failed, and was not retried with success."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.failed_allocations import (
    OUT_OF_MEMORY,
    FailedAllocation,
    continued_after,
    failed_allocations,
    is_final,
    may_be_retried,
    room_despite_failure,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import CodeLine, Culprit, Fact, Finding, FindingKind, Fix, Link, Severity
from ingero.identity import ending
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_bytes

CAUSE = "gpu-out-of-memory"
_ENDS_SOON_NS = 5_000_000_000  # a process that fails within this time after the request has ended because of it


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes with requests that finally failed; those that failed despite free memory are fragmentation."""
    failed: dict[int, list[FailedAllocation]] = defaultdict(list)
    is_final_by_second: dict[
        tuple[int, int], bool
    ] = {}  # by (process, second): a process that keeps retrying is checked once per second
    for failure in failed_allocations(evidence, evidence.window):
        second = failure.process, failure.begin_ns // SECOND_NS
        if failure.is_recovered or may_be_retried(evidence, failure) or room_despite_failure(evidence, failure):
            continue
        if second not in is_final_by_second:
            is_final_by_second[second] = not continued_after(evidence, failure) or is_final(evidence, failure)
        if is_final_by_second[second]:
            failed[failure.process].append(failure)
    for number, failures in failed.items():
        process = evidence.processes.get(number)
        if process:
            yield _finding(evidence, process, failures)


def _finding(evidence: Evidence, process: Process, failures: list[FailedAllocation]) -> Finding:
    first = failures[0]
    line = evidence.own_line(first.stack_hash)
    others = memory_in_use.other_users_of_gpu(evidence, process, first.begin_ns)
    holders = memory_in_use.largest_holders(
        evidence, Window(begin_ns=evidence.window.begin_ns, end_ns=first.begin_ns + 1), process.process
    )
    holders_text = f"; it holds {' and '.join(_holder_text(one) for one in holders)}" if holders else ""
    others_text = f"; also on that GPU: {' and '.join(_culprit_text(one) for one in others)}" if others else ""
    container = evidence.container_of(process.cgroup_id)
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.HIGH if continued_after(evidence, failures[-1]) else Severity.CRITICAL,
        window=Window(begin_ns=first.begin_ns, end_ns=failures[-1].end_ns + 1),
        summary=f"{process.name} [{process.pid}] asked for {format_bytes(first.size_bytes)} of GPU memory"
        f"{f' in {line}' if line else ''} and did not get "
        f"it{_outcome_text(evidence, process, failures[-1])}{holders_text}{others_text}",
        culprits=(Culprit(pid=process.pid, name=process.name, container=container), *others),
        line=line,
        chain=(_link(first, line),),
        fixes=_fixes(bool(others)),
        evidence=_facts(evidence, process, failures),
    )


def _holder_text(holder: memory_in_use.HeldMemory) -> str:
    return f"{format_bytes(holder.end_bytes)} from {holder.place}"


def _culprit_text(culprit: Culprit) -> str:
    return f"{culprit.name} [{culprit.pid}]"


def _outcome_text(evidence: Evidence, process: Process, last: FailedAllocation) -> str:
    if process.exit_ns is not None and process.exit_ns - last.end_ns <= _ENDS_SOON_NS and process.exit_code != 0:
        return f", then {ending(process.exit_code)}"
    return ", and went on without it" if continued_after(evidence, last) else ""


def _link(first: FailedAllocation, line: CodeLine | None) -> Link:
    again = f", {first.tries} times" if first.tries > 1 else ""
    return Link(
        text=f"{first.name} returned error {OUT_OF_MEMORY} (out of memory){again}" + (f" in {line}" if line else ""),
        seen_ns=first.end_ns - first.begin_ns,
        structure="the return code of the call",
        order=f"{first.frees} blocks were freed before the last attempt" if first.frees else "nothing was freed",
    )


def _facts(evidence: Evidence, process: Process, failures: list[FailedAllocation]) -> dict[str, Fact]:
    uuid = memory_in_use.gpu_of(evidence, process)
    first = failures[0]
    room = memory_in_use.free_memory_around(evidence, uuid, first.begin_ns, first.end_ns) if uuid else None
    return {
        "requests that failed": len(failures),
        "asked for (bytes)": first.size_bytes,
        "GPU": uuid,
        "memory of the GPU (bytes)": memory_in_use.memory_bytes(evidence, uuid) or None,
        "free shortly before (bytes)": memory_in_use.free_bytes(room.before) if room else None,
    }


def _fixes(has_others: bool) -> tuple[Fix, ...]:
    smaller = Fix(text="a smaller batch or sequence, activation checkpointing, or a lower precision")
    if not has_others:
        return (smaller,)
    list_users = Fix(
        text="list the processes that use its memory, and move one",
        command="nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv",
    )
    return list_users, smaller


RULE = Rule(
    cause=CAUSE,
    title="a GPU memory allocation failed",
    order=15,
    needs=("allocations",),
    shows="the return code, the bytes asked for, the line, what each line holds, and the other processes on that GPU",
    limits="a framework that has a limit of its own fails without a call; where a process allocates more than 100 "
    "times a second only failures and some of the successes have a record, so that a repeated request that "
    "succeeded can be missed; then nothing is reported of a process that goes on",
    find_events=find_events,
)
