"""Somebody on the path waited for a file that no local disk holds: NFS, FUSE and the like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.disk_waits import DiskWaits, waker_of
from ingero.diagnose.model import Culprit, Finding, Fix, Link
from ingero.diagnose.places import waited_at
from ingero.diagnose.rule import Rule
from ingero.diagnose.waits import Segment
from ingero.diagnose.workers import workers_of

CAUSE = "network-file-wait"
_ENDED_BY = ("network", "kworker", "thread")


def find(case: Case) -> Iterator[Finding]:
    """Waits for file contents without a block request that the network, a kernel worker or a stranger ended."""
    waits = DiskWaits(case)

    def is_file(one: Segment) -> bool:
        if one.state != "io" or one.waker_kind not in _ENDED_BY or not waits.is_ours(one) or waits.is_disk(one):
            return False
        if one.waker_kind == "kworker" and waits.kernel_was_busy(one):
            return False
        return one.waker_kind != "thread" or waits.is_ended_by_stranger(one)

    claims = waits.paths.claim(is_file)
    if not claims:
        return
    lost = sum(claims.values())
    segments = [one for one in waits.paths.all() if is_file(one)]
    issuers: Counter[tuple[int, str]] = Counter()
    servers: Counter[tuple[int, str]] = Counter()
    for one in segments:
        issuers[one.pid, case.thread_name(one)] += one.duration_ns
        if one.waker_kind == "thread":
            servers[waker_of(case, one)] += one.duration_ns
    (pid, name), _ = issuers.most_common(1)[0]
    by = "".join(f", served by {server} [{number}]" for (number, server), _ in servers.most_common(1))
    mine = [one for one in segments if one.pid == pid]
    yield Finding(
        cause=CAUSE,
        resource="file system",
        root=str(servers.most_common(1)[0][0][0] if servers else case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} while {name} [{pid}] waited for a file that no local disk holds "
        f"(NFS, FUSE or the like){by}",
        claims=claims,
        culprits=tuple(Culprit(pid=number, name=server, lost_ns=ns) for (number, server), ns in servers.items()),
        line=waited_at(case.evidence, mine[0].process or case.process.process, case.stretches, mine),
        chain=(
            Link(
                text=f"{name} waited for file contents",
                seen_ns=lost,
                structure="I/O waits without a block request of that process or of the kernel meanwhile",
                order=f"ended by {' or '.join(sorted({one.waker_kind for one in segments}))}, then it went on",
            ),
        ),
        fixes=(
            Fix(text="see what the mount does", command="nfsiostat 1 5; mount | grep -E 'nfs|fuse'"),
            Fix(text="copy the data to a local disk, or cache it", command="cachefilesd  # mount option fsc"),
            Fix(text="read ahead further: larger records, more workers", command="DataLoader(prefetch_factor=8)"),
        ),
        evidence={"waits": len(segments), "block requests": 0},
        waits_for=workers_of(case, segments),
    )


RULE = Rule(
    cause=CAUSE,
    title="waited for a file that no local disk holds",
    order=22,
    needs=("epochs", "offcpu", "IO"),
    shows="I/O waits of the path during which neither the process nor the kernel had a block request, and who ended "
    "them",
    limits="a device whose requests other threads issue (dm-crypt, md) looks alike; a FUSE file opened for direct I/O "
    "sleeps like any wait for another process, and is a data-starvation",
    find=find,
)
