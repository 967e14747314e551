"""Calls into the GPU driver waited for one of its locks in the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Culprit, Finding, Fix, Link
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import HOST_PARTS, named
from ingero.store.records import Window
from ingero.units import SECOND_NS

CAUSE = "driver-lock"
MIN_SHARE = 0.05  # of the loss; below, nobody asks


def find(case: Case) -> Iterator[Finding]:
    """Kernel-lock time inside calls that goes beyond the reference and that no reclaim explains."""
    if case.total(HOST_PARTS, ("kernel_lock",)) < MIN_SHARE * case.loss_ns:
        return
    now = _locked_ns(case, (case.window,))
    before = tuple(_whole_seconds(one) for one in case.baselines)
    usual = _locked_ns(case, before)
    scale = case.window.duration_ns / max(sum(one.duration_ns for one in before), 1)
    grown = {name: ns - usual[name] * scale for name, ns in now.items() if ns > usual[name] * scale}
    claims = case.take(HOST_PARTS, ("kernel_lock",), sum(grown.values())) if grown else {}
    claims = {bucket: ns for bucket, ns in claims.items() if ns > 0}
    if not claims:
        return
    lost, call = sum(claims.values()), max(grown, key=lambda name: grown[name])
    others = _others(case)
    beside = f"; {named(others)} used the device, too" if others else ""
    yield Finding(
        cause=CAUSE,
        resource="driver",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} blocked in the kernel inside GPU calls, most of it in {call}"
        f"{beside}",
        claims=claims,
        culprits=tuple(others),
        line=next((case.line_of(one) for one in case.op_changes if one.totals.name == call), None),
        chain=(
            Link(
                text=f"{call} waited for a lock of the driver",
                seen_ns=int(now[call]),
                expected_ns=int(usual[call] * scale),
                structure="uninterruptible sleep inside the call, without reclaim and without I/O",
                order="within the call, before the next launch",
            ),
        ),
        fixes=(
            Fix(
                text="see who else is in the driver: monitoring, other jobs, MPS", command="sudo fuser -v /dev/nvidia*"
            ),
            Fix(text="keep the driver loaded and its state initialised", command="sudo nvidia-smi -pm 1"),
        ),
        evidence={"calls blocked": ", ".join(sorted(grown, key=lambda name: -grown[name])[:4])},
    )


def _whole_seconds(window: Window) -> Window:
    """Calls are counted by the second: without the seconds that reach out of it, where something remains."""
    if window.duration_ns <= 2 * SECOND_NS:
        return window
    return Window(begin_ns=window.begin_ns + SECOND_NS, end_ns=window.end_ns - SECOND_NS)


def _locked_ns(case: Case, windows: tuple[Window, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for window in windows:
        for one in case.evidence.reader.op_totals(window, process=case.process.process):
            if one.clocks is not None:
                found[one.name] += one.clocks.kernel_lock_ns
    return found


def _others(case: Case) -> list[Culprit]:
    """Processes that held memory on a GPU in the case, beside the job's own."""
    window = case.window
    seen: Counter[int] = Counter()
    for sample in case.evidence.gpu_samples:
        if window.begin_ns <= sample.time_ns < window.end_ns:
            seen.update(pid for pid, _ in sample.processes if pid not in case.job)
    return [Culprit(pid=pid, name=case.evidence.name_of_pid(pid) or "pid") for pid, _ in seen.most_common(4)]


RULE = Rule(
    cause=CAUSE,
    title="blocked in the GPU driver's own locks",
    order=45,
    needs=("epochs", "op_stats", "clock_seconds"),
    wants=("launch_times", "allocation_times"),
    shows="time blocked in the kernel inside GPU calls beyond the reference, by call, and who else used the GPUs",
    limits="which lock, and who held it, is not visible; the first run in a container may hide other users of the GPU",
    find=find,
)
