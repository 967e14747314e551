"""Findings of one case that are one incident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingero.diagnose.findings import Bucket, CodeLine, Culprit, Fact, Finding, Part
from ingero.diagnose.incidents.subsumption import subsume

RUN, RUNQ = Bucket(Part.IDLE, "run"), Bucket(Part.IDLE, "runq")
IO, SLEEP = Bucket(Part.IDLE, "io"), Bucket(Part.IDLE, "sleep")


def finding(cause: str, claims: dict[Bucket, int], line: CodeLine | None = None, **evidence: Fact) -> Finding:
    return Finding(cause=cause, summary=cause, claims=claims, line=line, evidence=evidence)


def at(function: str, line: int = 1) -> CodeLine:
    return CodeLine(file="train.py", line=line, function=function)


def took(name: str, ns: int) -> Culprit:
    return Culprit(pid=1, name=name, lost_ns=ns)


def test_writing_and_computing_in_one_function_is_one_incident() -> None:
    disk = finding("block-io", {IO: 400}, at("save_checkpoint", 62))
    computing = finding("host-bound", {RUN: 900}, at("save_checkpoint", 61))
    [one] = subsume([disk, computing])
    assert (one.cause, one.lost_ns, dict(one.claims)) == ("block-io", 1300, {IO: 400, RUN: 900})
    assert one.evidence["of it host-bound (ns)"] == 900


def test_computing_around_an_allocation_belongs_to_it_if_that_took_more() -> None:
    computing = finding("host-bound", {RUN: 200}, at("reshape", 90))
    [one] = subsume([finding("allocator-retry", {RUN: 300}, at("reshape", 90)), computing])
    assert (one.cause, one.lost_ns) == ("allocator-retry", 500)
    both = [finding("allocation-churn", {RUN: 100}, at("reshape", 90)), computing]
    assert subsume(both) == both


def test_computing_elsewhere_is_an_incident_of_its_own() -> None:
    both = [finding("block-io", {IO: 400}, at("save_checkpoint")), finding("host-bound", {RUN: 900}, at("metrics"))]
    assert subsume(both) == both


def test_launches_that_short_memory_slows_belong_to_it() -> None:
    launches = Bucket(Part.LAUNCH, "run")
    [one] = subsume([finding("memory-pressure", {launches: 700}), finding("launch-bound", {launches: 300})])
    assert (one.cause, one.lost_ns) == ("memory-pressure", 1000)


@pytest.mark.parametrize(("was", "cause"), [("disk", "block-io"), ("network", "network-retransmit")])
def test_data_that_are_late_for_a_disk_or_a_network_belong_to_it(was: str, cause: str) -> None:
    starving = finding("data-starvation", {SLEEP: 700}, at("decode"), **{"worker was": was})
    [one] = subsume([finding(cause, {SLEEP: 900}), starving])
    assert (one.cause, one.lost_ns, one.line) == (cause, 1600, at("decode"))


def test_the_little_that_a_worker_computed_meanwhile_is_neither_the_disks_nor_told() -> None:
    starving = finding("data-starvation", {SLEEP: 100}, **{"worker was": "disk"})
    disk, rest = subsume([finding("block-io", {SLEEP: 900}), starving])
    assert (disk.lost_ns, rest.lost_ns, rest.min_wall_ratio) == (900, 100, 1.0)


def test_the_summary_says_all_that_was_lost() -> None:
    disk = finding("block-io", {IO: 400}, at("save_checkpoint", 62))
    said = Finding(cause="block-io", summary="lost <400>", claims=disk.claims, line=disk.line)
    computing = finding("host-bound", {RUN: 900}, at("save_checkpoint", 61))
    [one] = subsume([said, computing], lambda ns: f"<{ns}>")
    assert one.summary.startswith("lost <1300>; ")


def test_what_is_only_part_of_a_cause_is_none_by_itself() -> None:
    contention = replace(finding("self-oversubscription", {RUNQ: 300}), stands_alone=False)
    [one] = subsume([contention, finding("gil", {SLEEP: 900})])
    assert (one.cause, one.lost_ns, one.stands_alone) == ("gil", 1200, True)


def test_data_that_are_late_for_another_reason_are_an_incident_of_their_own() -> None:
    both = [finding("block-io", {IO: 900}), finding("data-starvation", {SLEEP: 700}, **{"worker was": "asleep"})]
    assert subsume(both) == both


@pytest.mark.parametrize(
    "work",
    [
        finding("garbage-collection", {RUN: 900}),
        finding("gil", {SLEEP: 900}),
        finding("data-starvation", {SLEEP: 900}, **{"worker was": "on-cpu"}),
    ],
    ids=lambda one: one.cause,
)
def test_contention_belongs_to_the_work_that_it_is_for(work: Finding) -> None:
    [one] = subsume([finding("self-oversubscription", {RUNQ: 300}), work])
    assert (one.cause, one.lost_ns) == (work.cause, 1200)


@pytest.mark.parametrize(
    ("held_ns", "holder", "causes"),
    [
        (400, "hog", ["gil"]),
        (400, "other", ["self-oversubscription", "gil"]),
        (100, "hog", ["self-oversubscription", "gil"]),
    ],
)
def test_contention_by_the_thread_that_holds_the_interpreter_lock_is_of_it(
    held_ns: int, holder: str, causes: list[str]
) -> None:
    contention = replace(
        finding("self-oversubscription", {RUNQ: 900}), culprits=(took("hog", 700), took("worker", 200))
    )
    held = replace(finding("gil", {SLEEP: held_ns}), culprits=(took(holder, held_ns),))
    found = subsume([contention, held])
    assert [one.cause for one in found] == causes
    assert sum(one.lost_ns for one in found) == 900 + held_ns


@pytest.mark.parametrize(
    "other",
    [
        finding("data-starvation", {SLEEP: 900}, **{"worker was": "disk"}),
        finding("gpu-throttled", {Bucket(Part.GPU, "device"): 900}),
        finding("host-bound", {RUN: 200}),
    ],
    ids=["a worker that waits", "a slow device", "less work than crowding"],
)
def test_contention_without_such_work_is_an_incident_of_its_own(other: Finding) -> None:
    both = [finding("self-oversubscription", {RUNQ: 300}), other]
    assert subsume(both) == both
