"""The thread that feeds the device waited for the interpreter lock that another thread of its process held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Finding, Fix, Link, Part
from ingero.diagnose.rule import Rule
from ingero.diagnose.waits import GIL, Segment

CAUSE = "gil"
MIN_TIMED = 0.3  # of the waiting for own threads; a handover without it may be any lock


def find(case: Case) -> Iterator[Finding]:
    """Waits of one switch interval that another thread of the process ended."""
    own = case.process.pid

    def is_gil(one: Segment) -> bool:
        return one.pid == own and (one.state == GIL or one.depth > 0)

    for part in (Part.EMPTY, Part.ENQUEUE):
        whole = case.path_share(part, is_gil)
        timed = case.path_share(part, lambda one: one.pid == own and one.state == GIL and one.depth == 0)
        if whole and timed < MIN_TIMED * whole and case.total((part,), ("sleep",)) > 0.1 * case.loss_ns:
            return
    claims = case.take_path(is_gil)
    if not claims:
        return
    lost = sum(claims.values())
    holders: Counter[str] = Counter()
    for one in (*case.empty_paths, *case.enqueue_paths):
        if one.pid == own and one.depth > 0:
            holders[case.thread_name(one)] += one.duration_ns
    names = " and ".join(name for name, _ in holders.most_common(2)) or "another thread"
    yield Finding(
        cause=CAUSE,
        resource="interpreter lock",
        root=str(own),
        summary=f"{case.who} lost {case.amount(lost)} waiting for the interpreter lock, which its thread {names} held",
        claims=claims,
        chain=(
            Link(
                text="the thread that feeds the device asked for the lock again and again",
                seen_ns=lost,
                structure="sleeps of one switch interval (5 ms), each ended by a timer and followed by a handover",
                order=f"{names} ran until it handed the lock over",
            ),
        ),
        fixes=(
            Fix(text="move pure-Python work out of the process", command="multiprocessing.Process(...)"),
            Fix(text="or let threads hand over sooner", command="sys.setswitchinterval(0.0005)"),
        ),
        evidence={"holder": names},
    )


RULE = Rule(
    cause=CAUSE,
    title="another thread held the interpreter lock",
    order=35,
    needs=("epochs", "offcpu"),
    shows="sleeps of one switch interval on the path, and the thread of the process that handed the lock over",
    limits="with another switch interval than 5 ms, or without a GIL, such a wait is a lock",
    find=find,
)
