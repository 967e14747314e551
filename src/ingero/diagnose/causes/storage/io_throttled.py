"""I/O requests of the critical path were throttled by the limit of their own cgroup, before they reached a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.scheduling import SchedulerFacts
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.causes.storage.block_requests import DiskWaits, Requests, device_number, longest_waiting
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.diagnose.limit_commands import remove_io_limit
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.foreign_text import label
from ingero.units import format_bytes, format_count, format_ns

CAUSE = "io-throttled"
_MAX_SERVICE_SHARE = 0.5  # of the waits, by requests in the queue or device: above it the device is what is slow


@dataclass(frozen=True, slots=True)
class _Limit:
    device: str
    limit: str
    path: str

    @property
    def text(self) -> str:
        """For people: "20.0 MiB/s read from disk 8:0"."""
        name, _, value = self.limit.partition("=")
        doing = "read from" if name.startswith("r") else "written to"
        number = int(value) if value.isdigit() else 0
        rate = f"{format_bytes(number)}/s" if name.endswith("bps") else f"{format_count(number)} requests/s"
        return f"{rate} {doing} disk {self.device}"


def explain(case: Case) -> Iterator[Finding]:
    """Waits on the critical path for a disk with a limit, while hardly any of its requests were in queue or device."""
    limits = _limits(case)
    if not limits:
        return
    waits = DiskWaits(case)

    def is_disk(segment: PathSegment) -> bool:
        return waits.is_disk(segment) or (
            segment.state == "io" and segment.waker_kind == "block" and waits.is_of_family(segment)
        )

    segments = [segment for segment in waits.paths.all() if is_disk(segment)]
    waited_ns = sum(segment.duration_ns for segment in segments)
    requests = waits.requests_behind(segments)
    in_device_ns = (requests.queue_ns + requests.device_ns) * len(requests.events)
    seen_ns = sum(segment.duration_ns for segment in segments if waits.requests_of(segment))
    limit = _limit_of(requests, limits, is_sure=2 * seen_ns >= waited_ns)
    if not limit or in_device_ns > _MAX_SERVICE_SHARE * waited_ns:
        return
    claims = waits.paths.claim(is_disk)
    if not claims:
        return
    lost, longest_wait = sum(claims.values()), longest_waiting(segments)
    yield Finding(
        cause=CAUSE,
        resource="io limit",
        root=limit.path,
        summary=f"{case.who} lost {case.amount(lost)} while {case.thread_name(longest_wait)} [{longest_wait.pid}] "
        "was in I/O wait on a "
        f"disk that its own cgroup {label(limit.path)} limits to {limit.text}",
        claims=claims,
        line=waits.line(segments, claims),
        chain=(
            Link(
                text=f"its I/O waits took {format_ns(waited_ns)}, its requests in queue and device "
                f"{format_ns(int(in_device_ns))}",
                seen_ns=waited_ns,
                expected_ns=int(in_device_ns),
                structure="the limit that was in force, and the kernel's own times of each request",
                order="throttled before they reached the disk queue",
            ),
        ),
        fixes=(
            Fix(text="raise or remove the limit", command=remove_io_limit(limit.path, limit.device, limit.limit)),
            Fix(
                text="or read the mapped file whole, or copy it to another disk, before it is used: page by page each "
                "touch waits"
                if any(event.is_page_fault for event in waits.own)
                else "or read less at once: smaller files, what is read twice kept in memory or on another disk"
            ),
        ),
        evidence={"limit": limit.limit, "device": limit.device, "group": limit.path} | requests.facts,
        waited_for_pids=workers_of(case, segments),
    )


def _limits(case: Case) -> list[_Limit]:
    """I/O limits in force for the process and its workers."""
    facts = SchedulerFacts(case)
    rows = (facts.in_force(pid, pid) for pid in sorted(case.family))
    return [_Limit(*map(str, limit)) for row in rows if row for limit in json.loads(row.io_limits)]


def _limit_of(requests: Requests, limits: list[_Limit], *, is_sure: bool) -> _Limit | None:
    """The limit of the device that the requests were for; of any device where no request was seen.

    is_sure: most waits had requests that were seen, so that the limit must have their direction. Otherwise any limit of
    the device: throttled I/O is not yet a request, and not seen.
    """
    device = device_number(requests.device) if requests.events else ""
    letter = "w" if requests.events and requests.is_write else "r"
    of_device = [limit for limit in limits if limit.device == device or not device]
    same_direction = (limit for limit in of_device if limit.limit.startswith(letter))
    return next(same_direction, None if is_sure or not of_device else of_device[0])


RULE = Rule(
    cause=CAUSE,
    title="throttled by the I/O limit of its cgroup",
    order=17,
    needs=("sync_intervals", "offcpu", "IO", "scheduling"),
    shows="waits of the critical path for a disk, the limit of the cgroup, and how short its requests were in the "
    "queue and on the disk",
    limits="that a limit was reached is inferred: the kernel does not report for how long it throttled a request; "
    "limits by latency (io.latency) and by weight or cost (io.weight, io.cost) are not checked",
    explain=explain,
)
