"""The critical path waited for a file, or an answer about one, that is on no local disk: NFS, FUSE and the like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.causes.storage.block_requests import DiskWaits, waker_of
from ingero.diagnose.causes.storage.copied_faults import CopiedFaults, copied_faults
from ingero.diagnose.findings import Culprit, Finding, Fix, Link
from ingero.diagnose.lost_time.no_demand import is_outside
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import line_of_kernel_waits
from ingero.units import format_count

CAUSE = "network-filesystem-wait"
_WAKER_KINDS = ("network", "kworker", "thread")  # what can end a wait for a file of a network or FUSE mount
_READ_WHOLE = Fix(
    text="read the file whole into memory, or copy it to a local disk, before it goes to the GPU: page by page each "
    "copy waits for the mount",
    command="torch.load(..., mmap=False)  # safetensors: load(open(path, 'rb').read())",
)


def explain(case: Case) -> Iterator[Finding]:
    """Waits for files without a block request, ended by the network, a kernel worker or another job."""
    waits = DiskWaits(case)

    def is_file(segment: PathSegment) -> bool:
        if segment.state == "sleep":  # only a program that serves files ends such a sleep
            is_served = segment.waker_kind == "thread" and is_outside(segment, case.family)
            return is_served and waits.is_of_family(segment) and (segment.asks_file_system or segment.is_page_fault)
        if (
            segment.state != "io"
            or segment.waker_kind not in _WAKER_KINDS
            or not waits.is_of_family(segment)
            or waits.is_disk(segment)
        ):
            return False
        if segment.waker_kind == "kworker" and waits.is_kernel_busy(segment):
            return False
        return segment.waker_kind != "thread" or waits.is_ended_by_another_job(segment)

    claims = waits.paths.claim(is_file)
    copied = copied_faults(case)
    if copied:
        claims |= copied.claims
    if not claims:
        return
    lost = sum(claims.values())
    segments = [segment for segment in waits.paths.all() if is_file(segment)]
    issuers: Counter[tuple[int, str]] = Counter()
    servers: Counter[tuple[int, str]] = Counter(copied.served if copied else {})
    for segment in segments:
        issuers[segment.pid, case.thread_name(segment)] += segment.duration_ns
        if segment.waker_kind == "thread":
            servers[waker_of(case, segment)] += segment.duration_ns
    if copied:
        issuers[case.process.pid, case.process.name] += sum(copied.claims.values())
    (pid, name), _ = issuers.most_common(1)[0]
    server_text = "".join(f", served by {server} [{number}]" for (number, server), _ in servers.most_common(1))
    of_main_issuer = [segment for segment in segments if segment.pid == pid]
    process = of_main_issuer[0].process if of_main_issuer else case.process.process
    line = (
        line_of_kernel_waits(case.evidence, process or case.process.process, case.time_ranges, of_main_issuer)
        if of_main_issuer
        else None
    )
    pages_text = ""
    if copied and 2 * sum(copied.claims.values()) > lost:
        line = copied.line or line
        pages_text = f", inside copies that touched {format_count(copied.faults)} pages of it first"
    yield Finding(
        cause=CAUSE,
        resource="file system",
        root=str(servers.most_common(1)[0][0][0] if servers else case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} while {name} [{pid}] waited for a file on a network or FUSE "
        f"filesystem{server_text}{pages_text}",
        claims=claims,
        culprits=tuple(Culprit(pid=number, name=server, lost_ns=ns) for (number, server), ns in servers.items()),
        line=line,
        chain=(
            Link(
                text=f"{name} waited for file contents",
                seen_ns=lost,
                structure="waits for pages without a block request of that process or of the kernel meanwhile",
                order=f"ended by {_waker_text(segments, copied)}, then it went on",
            ),
        ),
        fixes=(
            *((_READ_WHOLE,) if pages_text else ()),
            Fix(text="show what the mount does", command="nfsiostat 1 5; mount | grep -E 'nfs|fuse'"),
            Fix(text="copy the data to a local disk, or cache it", command="cachefilesd  # mount option fsc"),
            Fix(text="read ahead further: larger records, more workers", command="DataLoader(prefetch_factor=8)"),
        ),
        evidence={"waits": len(segments) + (copied.waits if copied else 0), "block requests": 0}
        | ({"pages touched": copied.faults} if copied else {}),
        waited_for_pids=workers_of(case, segments),
    )


def _waker_text(segments: list[PathSegment], copied: CopiedFaults | None) -> str:
    return " or ".join(sorted({segment.waker_kind for segment in segments} | ({"thread"} if copied else set())))


RULE = Rule(
    cause=CAUSE,
    title="I/O wait for a network or FUSE filesystem",
    order=22,
    needs=("sync_intervals", "offcpu", "IO"),
    improves_with=("thread_state_seconds",),
    shows="I/O waits of the critical path during which neither the process nor the kernel had a block request, and "
    "who ended them; sleeps in a stat, an fsync, a close or a page fault that another process ended; sleeps inside "
    "copies to the GPU that another process ended, while touched pages had to be read",
    limits="a block device whose requests other threads issue (dm-crypt, md) looks the same; a FUSE file opened for "
    "direct I/O sleeps like any wait for another process, and is reported as data-starvation",
    explain=explain,
)
