"""The order of chains on many machines: never one that is not so, and one wherever the bounds prove it."""

from __future__ import annotations

import random

import msgspec

from ingero.fleet.chain_order import InOrder, in_order
from ingero.fleet.clocks import Clock
from ingero.fleet.explanations import Chain, Explanation, NodeNow, fleet_explanation
from ingero.fleet.fan_out import Answered, FleetAnswer
from ingero.fleet.node_lists import Node
from ingero.serve.structured.row_lines import Identity

_S, _MS = 10**9, 10**6
NOW_NS = 1_790_000_000 * _S


def chain(number: int, mono_ns: int | None, bound_ns: int = 0) -> Chain:
    return Chain(
        id=str(number), severity="HIGH", summary="s", root_cause="c", mono_ns=mono_ns, mono_bound_ns=bound_ns
    )  # fmt: skip


def node(place: int, chains: list[Chain], clock: Clock | None, now: NodeNow | None) -> Answered[Explanation]:
    answer = Explanation(
        node=Identity(nodes=[f"n{place}"], machine_id="", recording=f"r{place}"), headline="", chains=chains,
        diagnosis=msgspec.Raw(b"{}"), clock=now,
    )  # fmt: skip
    return Answered(node=Node(f"10.0.0.{place}"), answer=answer, elapsed_ns=1, clock=clock)


def ordered(*nodes: Answered[Explanation]) -> InOrder:
    return in_order(fleet_explanation(FleetAnswer(answered=nodes, missing=())))


def known_to(bound_ns: int, offset_ns: int = 0) -> Clock:
    return Clock(offset_ns=offset_ns, bound_ns=bound_ns, at_ns=NOW_NS, exchanges=8)


def at(now_mono_ns: int, offset_ns: int = 0, suspended_ns: int = 0) -> NodeNow:
    return NodeNow(mono_ns=now_mono_ns, unix_ns=NOW_NS + offset_ns, suspended_ns=suspended_ns)


def test_no_order_is_said_wrong_whatever_the_clocks_are_within_their_bounds() -> None:
    rng = random.Random(1)
    said = wrong = clear = 0
    for _ in range(400):
        truth: dict[tuple[str, str], int] = {}
        nodes = []
        bounds = []
        for place in range(rng.randrange(2, 6)):
            bound_ns, offset_ns, boot_ns = rng.randrange(100_000, 5 * _MS), rng.randrange(-3 * _S, 3 * _S), _S * 90_000
            chains = []
            for number in range(rng.randrange(1, 5)):
                ago_ns, slewed_ns = rng.randrange(_MS, 40 * _MS), rng.randrange(300_000)
                truth[f"n{place}", str(number)] = -ago_ns
                mono_ns = boot_ns - ago_ns + rng.randint(-slewed_ns, slewed_ns)
                chains.append(chain(number, mono_ns, slewed_ns))
            clock = known_to(bound_ns, offset_ns + rng.randint(-bound_ns, bound_ns))
            nodes.append(node(place, chains, clock, at(boot_ns, offset_ns)))
            bounds.append(bound_ns)
        found = ordered(*nodes).placed
        assert {(one.node, one.chain.id) for one in found} == set(truth)
        for place, one in enumerate(found):
            others = [before for before in found[:place] if before.node != one.node]
            mine_ns = truth[one.node, one.chain.id]
            said += one.is_known and bool(others)
            wrong += one.is_known and any(truth[before.node, before.chain.id] >= mine_ns for before in others)
            least_ns = min((mine_ns - truth[before.node, before.chain.id] for before in others), default=0)
            clear += least_ns > 4 * (max(bounds) + 400_000) and one.is_known is False
    assert (wrong, clear) == (0, 0)  # nor is one left open that is far beyond all bounds
    assert said > 200


def test_on_one_machine_the_order_is_known_without_a_bound() -> None:
    found = ordered(node(1, [chain(2, 2 * _S + 1), chain(1, 2 * _S)], known_to(50 * _MS), at(9 * _S))).placed
    assert [(one.chain.id, one.is_known) for one in found] == [("1", True), ("2", True)]


def test_one_whose_bound_reaches_over_those_between_keeps_their_order_open() -> None:
    vague = node(1, [chain(1, 5 * _S)], known_to(500 * _MS), at(9 * _S))
    sharp = [node(place, [chain(1, 5 * _S + place * 100 * _MS)], known_to(_MS), at(9 * _S)) for place in (2, 3)]
    late = node(4, [chain(1, 6 * _S)], known_to(_MS), at(9 * _S))
    found = ordered(vague, *sharp, late).placed
    assert [(one.node, one.is_known) for one in found] == [("n1", True), ("n2", False), ("n3", False), ("n4", True)]


def test_what_is_not_known_is_said_with_the_reason() -> None:
    silent = node(1, [chain(1, 5 * _S)], None, at(9 * _S))
    older = node(2, [chain(1, 5 * _S)], known_to(_MS), None)
    other_boot = node(3, [chain(1, None)], known_to(_MS), at(9 * _S))
    found = ordered(silent, older, other_boot)
    assert found.placed == ()
    says, boot = "the node does not say what its clock is", "it was recorded before that host's last boot"
    assert [one.reason.partition(",")[0] for one in found.not_placed] == [says, says, boot]


def test_a_machine_that_slept_since_says_so_in_the_bound() -> None:
    [one] = ordered(node(1, [chain(1, 5 * _S)], known_to(_MS), at(9 * _S, suspended_ns=7 * _S))).placed
    assert one.bound_ns >= 7 * _S
