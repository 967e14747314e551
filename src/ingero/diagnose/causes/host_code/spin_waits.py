"""Polling of the launching thread, without a sleep, for the work that its parent gives it."""

from __future__ import annotations

import re

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import growth_beyond, is_more, sample_count
from ingero.diagnose.causes.host_code.ipc_waits import IpcWait, WaitKind
from ingero.diagnose.causes.host_code.polling_loops import MIN_PARENT_SHARE, parent_of, polling_groups
from ingero.diagnose.findings import Part
from ingero.diagnose.samples.stack_samples import RUN, Doing, SampleGroup, at, group_samples, idle_spans, sampled_time
from ingero.units import format_percent

_MATH = re.compile(r"openblas|gomp|iomp|mkl|libomp|tbb")  # libraries whose threads wait for each other without a sleep


def spin_wait(case: Case) -> IpcWait | None:
    """On-CPU time of the launching thread in a loop that polls, beyond the baseline, while its parent computed."""
    parent = parent_of(case.evidence, case.process)
    if parent is None:
        return None
    now, before, scale = case.host_sample_groups.of(Doing.COMPUTING)
    polls, polled_before = ([one for one in polling_groups(groups) if _is_own_poll(one)] for groups in (now, before))
    is_more_now = is_more(sample_count(polls), sample_count(polled_before), scale) or not before
    grown = growth_beyond(polls, polled_before, scale) if polls and is_more_now else None
    computing = growth_beyond(now, before, scale)
    polled = min(grown.ns / computing.ns, 1.0) if grown and grown.is_enough and computing else 0.0
    parts, states = (Part.IDLE, Part.LAUNCH), ("run",)
    claims = case.claimable(parts, states, polled * sum(case.claimable(parts, states).values()))
    spans = sorted(one for mine in idle_spans(case.sync_intervals).values() for one in mine)
    whole_ns = sum(end - begin for begin, end in spans)
    if grown is None or not claims or whole_ns <= 0:
        return None
    tids = [tid for tid, (number, _) in case.evidence.threads.items() if number == parent.process]
    seen = group_samples(case.evidence, parent.process, (case.window,), dict.fromkeys(tids, spans), RUN)
    polls_too = polling_groups(seen)
    work = sampled_time([group for group in seen if group not in polls_too])
    if work.ns < MIN_PARENT_SHARE * whole_ns:
        return None
    name = case.evidence.thread_names.get(parent.pid) or parent.name
    share = format_percent(min(work.ns / whole_ns, 1.0))
    return IpcWait(
        kind=WaitKind.SPIN,
        claims=claims,
        partners=[(parent.pid, name, sum(claims.values()))],
        line=grown.line,
        samples=grown.count,
        doing=f"; {name} [{parent.pid}] was computing for {share} of the time before the first launch{at(work.line)}",
    )


def _is_own_poll(group: SampleGroup) -> bool:
    """Whether a thread polls itself; the driver and math libraries yield their CPU until another thread is done."""
    frames = group.stack.native if group.stack else ()
    return not (group.stack and group.stack.is_in_gpu_library) and not any(_MATH.search(one.file) for one in frames)
