"""Clocks of a merged recording: skews with their bound, what is not known, and never an order that is not so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from ingero.capture.loop.clocks import PAIR_PERIOD_NS, WallClock
from ingero.diagnose.findings import FindingKind, Incident, Severity
from ingero.fleet.merged_clocks import IncidentOrder, MergedClocks, SessionClock
from ingero.serve.boot_clock import Timeline
from ingero.store.records import NodeClock

_S, _MS = 10**9, 10**6
BEGIN_NS = 1_790_000_000 * _S


def incident(number: int, node: str, start_ns: int) -> Incident:
    return Incident(
        number=number, cause="cpu-contention", resource="r", root="t", kind=FindingKind.INCIDENT,
        severity=Severity.HIGH, start_ns=start_ns, end_ns=None, lost_ns=1, lost_ratio=0.1, explained_ratio=1.0,
        peak_ratio=0.1, summary="s", node=node,
    )  # fmt: skip


@dataclass
class Host:
    """A host in true time: when it started, how its clocks go, and by how much its wall clock is off from when on.

    suspended: true times from when to when. ppm: of its oscillator.
    """

    name: str
    boot_ns: int = BEGIN_NS - 5_000 * _S
    ppm: float = 0.0
    set_at: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    suspended: tuple[int, int] = (0, 0)

    def suspended_ns(self, true_ns: int) -> int:
        begin_ns, end_ns = self.suspended
        return max(0, min(true_ns, end_ns) - begin_ns)

    def mono(self, true_ns: int) -> int:
        elapsed_ns = true_ns - self.boot_ns - self.suspended_ns(true_ns)
        return elapsed_ns + int(elapsed_ns * self.ppm / 1e6)

    def wall(self, true_ns: int) -> int:
        off_ns = next(off for since, off in reversed(self.set_at) if since <= true_ns)
        return self.mono(true_ns) + self.suspended_ns(true_ns) + self.boot_ns + off_ns

    def pair(self, true_ns: int, *, is_told: bool) -> tuple[int, int, int | None]:
        return self.mono(true_ns), self.wall(true_ns), self.suspended_ns(true_ns) if is_told else None


@dataclass
class Recording:
    """What one host records from one moment to another, with the pairs that a recorder takes."""

    host: Host
    begin_ns: int
    end_ns: int
    is_told: bool = True
    pairs: list[tuple[int, int, int | None]] = field(default_factory=list)
    wall_clock: WallClock = field(default_factory=WallClock)
    recorded: dict[int, int] = field(default_factory=dict)  # by true time, unix ns

    def run(self, moments: Sequence[int]) -> Recording:
        next_pair_ns = self.begin_ns
        for true_ns in sorted([*moments, self.end_ns]):
            while next_pair_ns <= true_ns:
                self.add(next_pair_ns)
                next_pair_ns += PAIR_PERIOD_NS
            self.recorded[true_ns] = self.wall_clock.unix_ns_of(self.host.mono(true_ns))
        self.add(self.end_ns)
        return self

    def add(self, true_ns: int) -> None:
        pair = self.host.pair(true_ns, is_told=self.is_told)
        begin_ns, end_ns = self.host.suspended
        if not begin_ns <= true_ns < end_ns and (not self.pairs or pair[0] > self.pairs[-1][0]):
            self.wall_clock.add_pair(*pair[:2])
            self.pairs.append(pair)

    def session(self, *comparisons: NodeClock, cut_ns: int | None = None, boot_id: str = "") -> SessionClock:
        cut = [self.host.pair(cut_ns, is_told=True)] if cut_ns is not None else []
        return SessionClock(
            node=self.host.name,
            boot_id=boot_id or f"boot of {self.host.name}",
            started_ns=self.pairs[0][1],
            last_seen_ns=self.wall_clock.unix_ns_of(self.host.mono(self.end_ns)),
            timeline=Timeline([*self.pairs, *cut]),
            comparisons=comparisons,
        )


def compared(host: Host, true_ns: int, bound_ns: int, error_ns: int = 0, reference: str = "r") -> NodeClock:
    """By the clock of somebody whose clock is right."""
    offset_ns = host.wall(true_ns) - true_ns + error_ns
    return NodeClock(at_ns=true_ns, offset_ns=offset_ns, bound_ns=bound_ns, reference=reference)


def a_host(rng: random.Random, place: int) -> Host:
    middle_ns = BEGIN_NS + rng.randrange(5, 60) * _S
    off_ns = rng.choice([0, rng.randrange(-3 * _S, 3 * _S)])
    set_at = [(0, off_ns)]
    if rng.random() < 0.4:
        set_at.append((middle_ns, off_ns + rng.randrange(-5 * _S, 5 * _S)))
    slept_ns = rng.randrange(2, 20) * _S if rng.random() < 0.3 else 0
    return Host(
        f"n{place}", BEGIN_NS - rng.randrange(1_000, 90_000) * _S, rng.uniform(-50, 50), set_at,
        (middle_ns + _S, middle_ns + _S + slept_ns),
    )  # fmt: skip


def test_no_order_is_said_wrong_however_clocks_were_set_and_hosts_suspended() -> None:
    rng = random.Random(5)
    pairs = said = wrong = outside = 0
    while pairs < 10_000:
        cut_ns = BEGIN_NS + rng.randrange(90, 400) * _S
        sessions, incidents, truth = [], [], {}
        for place in range(rng.randrange(2, 6)):
            host, bound_ns = a_host(rng, place), rng.randrange(_MS // 10, 5 * _MS)
            begin, end = host.suspended
            moments = [BEGIN_NS + rng.randrange(2 * _MS, 80 * _S) for _ in range(rng.randrange(1, 4))]
            awake = [at for at in moments if not begin <= at < end]
            recording = Recording(host, BEGIN_NS, BEGIN_NS + 85 * _S, rng.random() < 0.5).run(awake)
            for true_ns in awake:
                truth[len(incidents)] = true_ns
                incidents.append(incident(len(incidents), host.name, recording.recorded[true_ns]))
            its = compared(host, cut_ns, bound_ns, rng.randint(-bound_ns, bound_ns))
            sessions.append(recording.session(its, cut_ns=cut_ns - rng.randrange(2 * _S)))
        found = MergedClocks(sessions).in_order(incidents).placed
        for at, one in enumerate(found):
            mine_ns = truth[one.incident.number]
            outside += abs(one.start_ns - mine_ns) > one.bound_ns
            before = [other for other in found[:at] if other.incident.node != one.incident.node]
            pairs += len(before)
            said += one.is_known and bool(before)
            wrong += one.is_known and any(truth[other.incident.number] >= mine_ns for other in before)
    assert (wrong, outside) == (0, 0)
    assert said > 1_000


def test_clocks_37_ms_apart_are_put_right_to_their_bound() -> None:
    hosts = [Host("a"), Host("b", set_at=[(0, 37 * _MS)])]
    true_ns = [BEGIN_NS + 20 * _S, BEGIN_NS + 20 * _S + 10 * _MS]
    cut_ns = BEGIN_NS + 70 * _S
    recordings = [Recording(host, BEGIN_NS, cut_ns - _S).run([at]) for host, at in zip(hosts, true_ns, strict=True)]
    incidents = [incident(at, one.host.name, one.recorded[true_ns[at]]) for at, one in enumerate(recordings)]
    assert incidents[1].start_ns - incidents[0].start_ns == 47 * _MS
    sessions = [one.session(compared(one.host, cut_ns, _MS // 10), cut_ns=cut_ns) for one in recordings]
    found = MergedClocks(sessions).in_order(incidents)
    assert [one.incident.node for one in found.placed] == ["a", "b"]
    assert [abs(one.start_ns - at) <= one.bound_ns for one, at in zip(found.placed, true_ns, strict=True)] == [True] * 2
    assert found.placed[1].is_known is False  # 10 ms within twice 0.1 ms and the drift of 50 s
    again = [replace(one, start_ns=one.start_ns + number * 10 * _MS) for number, one in enumerate(incidents)]
    assert MergedClocks(sessions).in_order(again).placed[1].is_known is True


def reasons(found: IncidentOrder) -> list[tuple[str, str]]:
    return [(one.incident.node, one.reason) for one in found.not_placed]


def test_what_is_not_known_has_its_reason() -> None:
    hosts = [Host("a"), Host("b"), Host("c"), Host("d"), Host("e")]
    at_ns, cut_ns = BEGIN_NS + 20 * _S, BEGIN_NS + 70 * _S
    recordings = [Recording(host, BEGIN_NS, BEGIN_NS + 60 * _S).run([at_ns]) for host in hosts]
    incidents = [incident(at, one.host.name, one.recorded[at_ns]) for at, one in enumerate(recordings)]
    a, b, c, d, e = recordings
    sessions = [
        a.session(compared(a.host, cut_ns, _MS), cut_ns=cut_ns),
        b.session(compared(b.host, cut_ns, _MS), cut_ns=cut_ns),
        c.session(compared(c.host, cut_ns, _MS, reference="other"), cut_ns=cut_ns),
        d.session(compared(d.host, cut_ns + 3_600 * _S, _MS)),  # it started anew before it was asked
        e.session(),
    ]
    found = MergedClocks(sessions).in_order(incidents)
    assert [one.incident.node for one in found.placed] == ["a", "b"]
    assert reasons(found) == [
        ("c", "its clock was compared at another time, with another clock"),
        ("d", "its clock was compared after another start of that host, or long after it was recorded"),
        ("e", "its clock was not compared with that of another node"),
    ]
    assert MergedClocks(sessions).not_compared() == (
        "the clocks of c, e were not compared with those of the others: their times are those of each node"
    )
    alone = MergedClocks(sessions[3:]).in_order(incidents[3:])
    assert (alone.axis, alone.placed, len(alone.not_placed)) == (None, (), 2)


def test_nodes_of_one_boot_have_one_clock_whatever_their_wall_clocks_say() -> None:
    boot_ns = BEGIN_NS - 100 * _S
    real, shifted = Host("a", boot_ns), Host("b", boot_ns, set_at=[(0, 3 * _S)])
    at = [BEGIN_NS + 20 * _S, BEGIN_NS + 20 * _S + _MS]
    recordings = [
        Recording(host, BEGIN_NS, BEGIN_NS + 30 * _S).run([at_ns]) for host, at_ns in ((shifted, at[0]), (real, at[1]))
    ]
    incidents = [incident(0, "b", recordings[0].recorded[at[0]]), incident(1, "a", recordings[1].recorded[at[1]])]
    clocks = MergedClocks([one.session(boot_id="same") for one in recordings])
    found = clocks.in_order(incidents)
    assert [(one.incident.node, one.is_known) for one in found.placed] == [("b", True), ("a", True)]
    assert found.axis is not None
    assert found.axis.text == "the clock of the host that all are on"
    assert clocks.not_compared() == ""
    assert list(clocks.skews(100 * _MS)) == ["the clock of a is 3.00 s behind that of b on the same host, to 2.00 µs"]
    assert list(clocks.skews(4 * _S)) == []


def test_a_clock_that_was_set_while_it_was_recorded_is_told_with_its_bound() -> None:
    at_ns = BEGIN_NS + 25 * _S
    set_back = Host("a", set_at=[(0, 0), (at_ns, -2 * _S)])
    forward = Host("b", set_at=[(0, 0), (at_ns, 2 * _S)])
    slept = Host("c", suspended=(at_ns, at_ns + 7 * _S))
    recordings = [Recording(host, BEGIN_NS, BEGIN_NS + 60 * _S).run([]) for host in (set_back, forward, slept)]
    told = list(MergedClocks([one.session() for one in recordings]).skews(100 * _MS))
    assert [text.partition(", between ")[0] for text in told] == [
        "the clock of a was set back by 2.00 s, to 2.00 µs",
        "the clock of b went ahead by 2.00 s, to 2.00 µs",
    ]
    older = Recording(slept, BEGIN_NS, BEGIN_NS + 60 * _S, is_told=False).run([])
    [text] = MergedClocks([older.session()]).skews(100 * _MS)
    assert text.startswith("the clock of c went ahead by 7.00 s (or the host was suspended), to 2.00 µs, between ")


def test_a_clock_that_was_set_between_two_recordings_is_told() -> None:
    host = Host("a", set_at=[(0, 0), (BEGIN_NS + 100 * _S, -3 * _S)])
    recordings = [Recording(host, BEGIN_NS + at, BEGIN_NS + at + 60 * _S).run([]) for at in (0, 200 * _S)]
    told = list(MergedClocks([one.session() for one in recordings]).skews(100 * _MS))
    assert told == ["the clock of a was set back by 3.00 s, to 2.00 µs, between two of its recordings"]


def test_offsets_are_told_with_their_bound_by_the_threshold() -> None:
    hosts = [Host(name, set_at=[(0, off_ns)]) for name, off_ns in (("a", 0), ("b", 0), ("c", 250 * _MS))]
    cut_ns = BEGIN_NS + 70 * _S
    sessions = [
        Recording(host, BEGIN_NS, BEGIN_NS + 60 * _S).run([]).session(compared(host, cut_ns, 2 * _MS), cut_ns=cut_ns)
        for host in hosts
    ]
    clocks = MergedClocks(sessions)
    assert list(clocks.skews(100 * _MS)) == ["the clock of c is 250 ms ahead of the others, to 2.00 ms"]
    assert list(clocks.skews(300 * _MS)) == []
    assert clocks.not_compared() == ""


@pytest.mark.parametrize("pairs", [[(-1, 5, 0)], [(5, 1 << 62, 0)], [(1, -(1 << 63), 0), ((1 << 63) - 1, 1, 0)]])
def test_pairs_that_no_clock_says_are_none(pairs: list[tuple[int, int, int | None]]) -> None:
    assert not Timeline(pairs).has_pairs


def test_pairs_that_contradict_each_other_without_end_are_bounded() -> None:
    pairs = [(number, (1 << 60) * (number % 2), (1 << 63) - 1) for number in range(1, 50)]
    timeline = Timeline(pairs)
    assert timeline.has_pairs
    assert 1 < len(list(timeline.steps(_S))) < len(pairs)
