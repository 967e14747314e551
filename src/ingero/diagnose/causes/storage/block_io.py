"""Somebody on the critical path waited for a block device: a load, or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import named, pids
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.causes.storage.block_requests import DiskWaits, Requests, device_name, longest
from ingero.diagnose.findings import Culprit, Finding, Fix, Link
from ingero.diagnose.lost_time.time_ranges import UNOWNED_RATIO
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.units import format_bytes, format_ns

CAUSE = "block-io"
_QUEUED = 0.5  # of a request's time in the queue: others were before it


def find(case: Case) -> Iterator[Finding]:
    """Waits of the path that a block device ended, with the requests behind them."""
    waits = DiskWaits(case)
    segments = [one for one in waits.paths.all() if waits.is_disk(one)]
    requests = waits.behind(segments) if segments else None
    claims = waits.paths.claim(waits.is_disk) if requests and requests.events else {}
    if not claims or not requests:
        return
    lost = sum(claims.values())
    others = waits.others(requests.device)
    strangers = [one for one, _ in others if one.pid not in case.job and not one.name.startswith("kworker")]
    main = longest(segments)
    issuer = f"{case.thread_name(main)} [{main.pid}]"
    doing = _doing(requests, is_own=main.pid == case.process.pid)
    beside = _beside(others)
    yield Finding(
        cause=CAUSE,
        resource=device_name(requests.device),
        root=str(requests.device or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} while {issuer} was {doing} {device_name(requests.device)}"
        f": {requests.text}{beside}",
        claims=claims,
        least_ratio=0.0 if others or not waits.asks_as_usual else UNOWNED_RATIO,
        culprits=tuple(culprit for culprit, _ in others),
        line=waits.line(segments, claims),
        chain=tuple(_chain(waits, requests, issuer, lost)),
        fixes=tuple(_fixes(requests, strangers, main, case)),
        evidence=requests.facts
        | {
            "issuer": issuer,
            "device": device_name(requests.device),
            "direction": "write" if requests.is_write else "read",
        }
        | {"other processes on the disk (bytes)": sum(size for _, size in others)},
        waits_for=workers_of(case, segments),
    )


def _doing(requests: Requests, *, is_own: bool) -> str:
    if requests.is_write:
        return "writing a checkpoint or a log to" if is_own else "writing to"
    return "reading from"


def _beside(others: Sequence[tuple[Culprit, int]]) -> str:
    if not others:
        return ""
    size = format_bytes(sum(size for _, size in others))
    return f"; meanwhile {named([culprit for culprit, _ in others])} moved {size} there"


def _chain(waits: DiskWaits, requests: Requests, issuer: str, lost: int) -> Iterator[Link]:
    usual = waits.usual(requests)
    expected = int((usual.queue_ns + usual.device_ns) * len(requests.events)) if usual.events else None
    yield Link(
        text=f"{issuer} waited for its requests to the disk",
        seen_ns=lost,
        structure="waits in the kernel that the block device's completion ended, "
        "or with a request of that thread under way",
        order="the request began before the wait ended",
    )
    before = f", baseline {format_ns(usual.queue_ns + usual.device_ns)}" if usual.events else ""
    yield Link(
        text=f"each took {format_ns(requests.queue_ns)} in the queue and {format_ns(requests.device_ns)} in the "
        f"disk{before}",
        seen_ns=int((requests.queue_ns + requests.device_ns) * len(requests.events)),
        expected_ns=expected,
        structure="the kernel's own times of each request",
        order="queue before device before wake-up",
    )


def _fixes(requests: Requests, others: Sequence[Culprit], main: Segment, case: Case) -> Iterator[Fix]:
    if others:
        yield Fix(text="lower the I/O priority of the others", command=f"sudo ionice -c 3 -p {pids(others)}")
        device = device_name(requests.device).removeprefix("disk ")
        yield Fix(
            text="or limit them in their cgroup, which works with every I/O scheduler",
            command=f"echo '{device} rbps=<bytes> wbps=<bytes>' > <cgroup>/io.max",
        )
    if requests.is_write and main.pid == case.process.pid:
        yield Fix(
            text="write the checkpoint asynchronously: copy to host memory, and write from another thread or process",
            command="torch.distributed.checkpoint.async_save(...)",
        )
    elif not requests.is_write:
        share = requests.queue_ns / max(requests.queue_ns + requests.device_ns, 1)
        more = (
            "the disk queue is full: use fewer readers and larger requests"
            if share > _QUEUED
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
    find=find,
)
