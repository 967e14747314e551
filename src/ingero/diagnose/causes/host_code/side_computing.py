"""Computing outside the loop's own work: in functions of the program that issue no GPU calls.

A loop of small kernels computes and launches for part of its time anyway; a function that never issued a call is
something else that the GPU waits for.
"""

from __future__ import annotations

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.findings import FindingKind
from ingero.diagnose.samples.stack_samples import Doing, SampledTime, sampled_time
from ingero.ops import Source

_MIN_CALLS_WITH_FRAMES = 200  # with fewer recorded calls, some issuing function may be missing
_SOURCES = (int(Source.CUDA), int(Source.DRIVER), int(Source.CUDA_GRAPH), int(Source.NCCL))


def computing_outside_loop(case: Case) -> SampledTime | None:
    """Computing of a bottleneck in functions that issue no GPU calls; None where it alone is no bottleneck."""
    if case.kind is not FindingKind.BOTTLENECK:
        return None
    issuing = _issuing_functions(case)
    if issuing is None:
        return None
    computing = case.host_sample_groups.of(Doing.COMPUTING).now
    outside = sampled_time(
        [group for group in computing if group.line and (group.line.file, group.line.function) not in issuing]
    )
    return outside if outside.ns * case.scale >= BOTTLENECK_RATIO * case.wall_ns else None


def _issuing_functions(case: Case) -> set[tuple[str, str]] | None:
    """File and function of all Python frames from which recorded calls came; None where there are too few."""
    reader, stacks = case.evidence.reader, case.evidence.stacks
    times = reader.stack_times(case.window, process=case.process.process, sources=_SOURCES)
    stacks.read(row.stack_hash for row in times)
    functions: set[tuple[str, str]] = set()
    calls = 0
    for row in times:
        stack = stacks.of(row.stack_hash)
        if stack and stack.python:
            calls += row.count
            functions |= {(place.file, place.function) for place in stack.python}
    return functions if calls >= _MIN_CALLS_WITH_FRAMES else None
