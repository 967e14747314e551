"""The critical path waited for a block device: a load, or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import culprit_names, pid_list
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.causes.storage.block_requests import DiskWaits, Requests, device_name, longest_waiting
from ingero.diagnose.findings import Culprit, Finding, Fix, Link
from ingero.diagnose.lost_time.time_ranges import NORMAL_VARIATION_RATIO
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.units import format_bytes, format_ns

CAUSE = "block-io"
_MIN_QUEUE_SHARE = 0.5  # of a request's time in the queue: other requests were ahead of it


def explain(case: Case) -> Iterator[Finding]:
    """Waits on the critical path that a block device ended, with the requests behind them."""
    waits = DiskWaits(case)
    segments = [segment for segment in waits.paths.all() if waits.is_disk(segment)]
    requests = waits.requests_behind(segments) if segments else None
    claims = waits.paths.claim(waits.is_disk) if requests and requests.events else {}
    if not claims or not requests:
        return
    lost = sum(claims.values())
    others = waits.others(requests.device)
    other_jobs = [user for user, _ in others if user.pid not in case.job and not user.name.startswith("kworker")]
    longest_wait = longest_waiting(segments)
    issuer = f"{case.thread_name(longest_wait)} [{longest_wait.pid}]"
    doing = _doing(requests, is_own=longest_wait.pid == case.process.pid)
    others_text = _others_text(others)
    yield Finding(
        cause=CAUSE,
        resource=device_name(requests.device),
        root=str(requests.device or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} while {issuer} was {doing} {device_name(requests.device)}"
        f": {requests.text}{others_text}",
        claims=claims,
        min_wall_ratio=0.0 if others or not waits.moves_as_many_bytes else NORMAL_VARIATION_RATIO,
        culprits=tuple(culprit for culprit, _ in others),
        line=waits.line(segments, claims),
        chain=tuple(_chain(waits, requests, issuer, lost)),
        fixes=tuple(_fixes(requests, other_jobs, longest_wait, case)),
        evidence=requests.facts
        | {
            "issuer": issuer,
            "device": device_name(requests.device),
            "direction": "write" if requests.is_write else "read",
        }
        | {"other processes on the disk (bytes)": sum(size for _, size in others)},
        waited_for_pids=workers_of(case, segments),
    )


def _doing(requests: Requests, *, is_own: bool) -> str:
    if requests.is_write:
        return "writing a checkpoint or a log to" if is_own else "writing to"
    return "reading from"


def _others_text(others: Sequence[tuple[Culprit, int]]) -> str:
    if not others:
        return ""
    size = format_bytes(sum(size for _, size in others))
    return f"; meanwhile {culprit_names([culprit for culprit, _ in others])} moved {size} there"


def _chain(waits: DiskWaits, requests: Requests, issuer: str, lost: int) -> Iterator[Link]:
    baseline = waits.requests_in_baseline(requests)
    expected = int((baseline.queue_ns + baseline.device_ns) * len(requests.events)) if baseline.events else None
    yield Link(
        text=f"{issuer} waited for its requests to the disk",
        seen_ns=lost,
        structure="waits in the kernel that the block device's completion ended, "
        "or with a request of that thread under way",
        order="the request began before the wait ended",
    )
    before = f", baseline {format_ns(baseline.queue_ns + baseline.device_ns)}" if baseline.events else ""
    yield Link(
        text=f"each took {format_ns(requests.queue_ns)} in the queue and {format_ns(requests.device_ns)} in the "
        f"disk{before}",
        seen_ns=int((requests.queue_ns + requests.device_ns) * len(requests.events)),
        expected_ns=expected,
        structure="the kernel's own times of each request",
        order="queue before device before wake-up",
    )


def _fixes(requests: Requests, others: Sequence[Culprit], longest_wait: PathSegment, case: Case) -> Iterator[Fix]:
    if others:
        yield Fix(text="lower the I/O priority of the others", command=f"sudo ionice -c 3 -p {pid_list(others)}")
        device = device_name(requests.device).removeprefix("disk ")
        yield Fix(
            text="or limit them in their cgroup, which works with every I/O scheduler",
            command=f"echo '{device} rbps=<bytes> wbps=<bytes>' > <cgroup>/io.max",
        )
    if requests.is_write and longest_wait.pid == case.process.pid:
        yield Fix(
            text="write the checkpoint asynchronously: copy to host memory, and write from another thread or process",
            command="torch.distributed.checkpoint.async_save(...)",
        )
    elif not requests.is_write:
        share = requests.queue_ns / max(requests.queue_ns + requests.device_ns, 1)
        more = (
            "the disk queue is full: use fewer readers and larger requests"
            if share > _MIN_QUEUE_SHARE
            else "read earlier: deeper prefetch"
        )
        yield Fix(text=f"{more}; or keep the data in memory or on a local disk")


RULE = Rule(
    cause=CAUSE,
    title="I/O wait on a disk",
    order=20,
    needs=("sync_intervals", "offcpu", "IO"),
    shows="the waits of the critical-path thread, and of the worker that it waited for, that a block device ended; "
    "the block requests behind them, with device, issuer, direction, time in the queue and in the disk; the other "
    "processes that used it",
    limits="requests of untraced processes are known from 10 ms on (with their queue time: 1 in 16); which process "
    "dirtied the pages that the kernel writes back is unknown; waits below 100 µs are not followed; a disk that is "
    "slower for the same bytes per step, without another user, is reported from 5% of wall time: disks vary on their "
    "own",
    explain=explain,
)
