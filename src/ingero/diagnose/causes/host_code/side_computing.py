"""Computing that is apart from the loop's own work: in functions of the program that issue no calls.

A loop of small kernels computes and launches for a share of its time anyway; a function that no call ever came from is
something else that the GPU waits for.
"""

from __future__ import annotations

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.findings import FindingKind
from ingero.diagnose.samples.stack_samples import Doing, Spent, spent
from ingero.ops import Source

_MIN_CALLS = 200  # recorded with Python frames; of fewer some function may be missing
_SOURCES = (int(Source.CUDA), int(Source.DRIVER), int(Source.CUDA_GRAPH), int(Source.NCCL))


def computing_apart(case: Case) -> Spent | None:
    """Of computing against zero, what is in such functions; None where that alone is no bottleneck."""
    if case.kind is not FindingKind.BOTTLENECK:
        return None
    issuing = _issuing(case)
    if issuing is None:
        return None
    computing = case.host_stays.of(Doing.COMPUTING).now
    found = spent([one for one in computing if one.line and (one.line.file, one.line.function) not in issuing])
    return found if found.ns * case.scale >= BOTTLENECK_RATIO * case.wall_ns else None


def _issuing(case: Case) -> set[tuple[str, str]] | None:
    """File and function of all Python frames that recorded calls came from; None where these are too few."""
    reader, stacks = case.evidence.reader, case.evidence.stacks
    times = reader.stack_times(case.window, process=case.process.process, sources=_SOURCES)
    stacks.read(one.stack_hash for one in times)
    found: set[tuple[str, str]] = set()
    calls = 0
    for one in times:
        stack = stacks.of(one.stack_hash)
        if stack and stack.python:
            calls += one.count
            found |= {(place.file, place.function) for place in stack.python}
    return found if calls >= _MIN_CALLS else None
