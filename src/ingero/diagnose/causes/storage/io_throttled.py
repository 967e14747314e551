"""Requests of the path were held back by the I/O limit of its own control group, before any device had them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import free_io
from ingero.diagnose.causes.cpu.scheduling import SchedulerFacts
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.causes.storage.block_requests import DiskWaits, Requests, device_number, longest
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.foreign_text import label
from ingero.units import format_bytes, format_count, format_ns

CAUSE = "io-throttled"
_IN_DEVICE = 0.5  # of the waits, by requests that were in the queue or in the device: then these are what is slow


@dataclass(frozen=True, slots=True)
class _Limit:
    device: str
    limit: str
    path: str

    @property
    def text(self) -> str:
        """In words: "20.0 MiB/s read from disk 8:0"."""
        name, _, value = self.limit.partition("=")
        doing = "read from" if name.startswith("r") else "written to"
        number = int(value) if value.isdigit() else 0
        rate = f"{format_bytes(number)}/s" if name.endswith("bps") else f"{format_count(number)} requests/s"
        return f"{rate} {doing} disk {self.device}"


def find(case: Case) -> Iterator[Finding]:
    """Waits of the path for a disk that has a limit, while hardly a request of its own was in the queue or device."""
    limits = _limits(case)
    if not limits:
        return
    waits = DiskWaits(case)

    def is_disk(one: Segment) -> bool:
        return waits.is_disk(one) or (one.state == "io" and one.waker_kind == "block" and waits.is_ours(one))

    segments = [one for one in waits.paths.all() if is_disk(one)]
    waited_ns = sum(one.duration_ns for one in segments)
    requests = waits.behind(segments)
    in_device_ns = (requests.queue_ns + requests.device_ns) * len(requests.events)
    seen_ns = sum(one.duration_ns for one in segments if waits.requests_of(one))
    limit = _of(requests, limits, is_sure=2 * seen_ns >= waited_ns)
    if not limit or in_device_ns > _IN_DEVICE * waited_ns:
        return
    claims = waits.paths.claim(is_disk)
    if not claims:
        return
    lost, main = sum(claims.values()), longest(segments)
    yield Finding(
        cause=CAUSE,
        resource="io limit",
        root=limit.path,
        summary=f"{case.who} lost {case.amount(lost)} while {case.thread_name(main)} [{main.pid}] was in I/O wait on a "
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
            Fix(text="raise or remove the limit", command=free_io(limit.path, limit.device, limit.limit)),
            Fix(
                text="or read the mapped file whole, or copy it to another disk, before it is used: page by page each "
                "touch waits"
                if any(one.is_page_fault for one in waits.own)
                else "or read less at once: smaller files, what is read twice kept in memory or on another disk"
            ),
        ),
        evidence={"limit": limit.limit, "device": limit.device, "group": limit.path} | requests.facts,
        waits_for=workers_of(case, segments),
    )


def _limits(case: Case) -> list[_Limit]:
    """Those of the process and its workers."""
    facts = SchedulerFacts(case)
    rows = (facts.in_force(pid, pid) for pid in sorted(case.family))
    return [_Limit(*map(str, one)) for row in rows if row for one in json.loads(row.io_limits)]


def _of(requests: Requests, limits: list[_Limit], *, is_sure: bool) -> _Limit | None:
    """The limit of the device that the requests were for; of any, where none of them was seen.

    is_sure: most of the waits had requests that were seen, so that the limit has their direction. Else it is the one
    that there is: what is held back before it is a request is not seen.
    """
    device = device_number(requests.device) if requests.events else ""
    letter = "w" if requests.events and requests.is_write else "r"
    mine = [one for one in limits if one.device == device or not device]
    same = (one for one in mine if one.limit.startswith(letter))
    return next(same, None if is_sure or not mine else mine[0])


RULE = Rule(
    cause=CAUSE,
    title="throttled by the I/O limit of its cgroup",
    order=17,
    needs=("sync_intervals", "offcpu", "IO", "scheduling"),
    shows="waits of the critical path for a disk, the limit of the cgroup, and how short its requests were in the "
    "queue and on the disk",
    limits="that a limit was reached is inferred: the kernel does not report for how long it throttled a request; "
    "limits by latency (io.latency) and by weight or cost (io.weight, io.cost) are not checked",
    find=find,
)
