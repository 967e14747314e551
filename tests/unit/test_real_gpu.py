"""Recordings of PyTorch programs on an H100 and an H200: what was found stays found, and nothing wrong is ever named.

The truth beside each recording (tests/data/h100, h200) is the program's own: when it began each of its steps.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest

from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import UNEXPLAINED, Diagnosis
from ingero.store.reader import open_reader

DATA = Path(__file__).parents[1] / "data"
TRUTHS = {path.name.removesuffix(".truth.json"): path for path in sorted(DATA.glob("h[12]00/*.truth.json"))}
Array = np.ndarray[Any, np.dtype[Any]]


class Truth(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the program and its makers know. Times in us since its first mark; steps_inside: by the marks."""

    program: str
    pid: int
    first_mark_unix_ns: int
    recording_us: tuple[int, int]
    fault: str
    fault_us: tuple[int, int] | None
    profiler_us: tuple[int, int] | None
    steps_inside: int
    nvml_busy_percent: float
    causes_allowed: list[str]
    causes_required: list[str]
    culprit: str
    line: str
    verdict: str
    marks_us: list[int]

    @property
    def marks_ns(self) -> Array:
        """Begins of the program's steps, unix ns."""
        return np.asarray(self.marks_us, dtype=np.int64) * 1000 + self.first_mark_unix_ns

    @property
    def fault_ns(self) -> tuple[int, int]:
        """Begin and end of the fault, unix ns."""
        assert self.fault_us is not None
        begin_us, end_us = self.fault_us
        return begin_us * 1000 + self.first_mark_unix_ns, end_us * 1000 + self.first_mark_unix_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recording and its truth, in ns. steps: rows of start, end; sync_intervals: rows of end, length, busy time."""

    truth: Truth
    diagnosis: Diagnosis
    steps: Array
    sync_intervals: Array


NAMES = sorted(TRUTHS)


@cache  # a diagnosis takes two seconds
def recorded(name: str) -> Recorded:
    """One of them, read and diagnosed."""
    truth = msgspec.json.decode(TRUTHS[name].read_bytes(), type=Truth)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        path.write_bytes(lzma.decompress(TRUTHS[name].with_name(f"{name}.db.xz").read_bytes()))
        with open_reader(path) as reader:
            window = reader.window(None, 0)
            assert window is not None
            ask = reader.connection.execute
            steps = ask("SELECT start_ns, end_ns FROM steps WHERE pid = ? ORDER BY start_ns", (truth.pid,)).fetchall()
            intervals = ask(
                "SELECT sync_end_ns, duration_ns, busy_ns FROM sync_intervals WHERE pid = ? ORDER BY sync_end_ns",
                (truth.pid,),
            ).fetchall()
            return Recorded(
                truth=truth,
                diagnosis=diagnose(reader, window),
                steps=np.array(steps),
                sync_intervals=np.array(intervals),
            )


def named(diagnosis: Diagnosis) -> set[str]:
    """The causes of its incidents."""
    return {incident.cause for incident in diagnosis.incidents} - {UNEXPLAINED}


def test_each_recording_has_its_truth_and_none_is_missing() -> None:
    of_h100 = ["compile", "hog", "item", "item-later", "loader-pinned", "nosync"]
    of_h200 = ["busy-thread", "loader-pageable", "nosync-profiled", "share"]
    assert sorted([*of_h100, *of_h200]) == NAMES
    assert sorted(path.name.removesuffix(".db.xz") for path in DATA.glob("h[12]00/*.db.xz")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_step_found_holds_one_step_of_the_program_and_none_is_left_out(name: str) -> None:
    case = recorded(name)
    first = np.searchsorted(case.truth.marks_ns, case.steps[:, 0], "right")
    last = np.searchsorted(case.truth.marks_ns, case.steps[:, 1], "right")
    assert set(last - first) == {1}
    assert set(np.diff(first)) == {1}
    assert len(case.steps) == case.truth.steps_inside == last[-1] - first[0]


@pytest.mark.parametrize("name", ["item", "item-later", "hog", "share"])
def test_a_program_that_waits_once_a_step_has_one_sync_interval_a_step(name: str) -> None:
    case = recorded(name)
    ends = np.searchsorted(case.truth.marks_ns, case.sync_intervals[:, 0], "right")
    assert set(np.diff(ends)) == {1}


def test_busy_time_between_waits_is_what_the_driver_saw() -> None:
    case = recorded("item")
    busy = case.sync_intervals[:, 2].sum() / case.sync_intervals[:, 1].sum() * 100
    assert busy == pytest.approx(case.truth.nvml_busy_percent, abs=2)  # NVML samples whole percents once a second


@pytest.mark.parametrize("name", NAMES)
def test_no_cause_is_named_that_was_not_there(name: str) -> None:
    case = recorded(name)
    assert named(case.diagnosis) <= set(case.truth.causes_allowed)


@pytest.mark.parametrize("name", NAMES)
def test_a_cause_that_was_proven_stays_named(name: str) -> None:
    case = recorded(name)
    assert named(case.diagnosis) >= set(case.truth.causes_required)


@pytest.mark.parametrize("name", ["compile", "loader-pinned", "nosync-profiled", "share"])
def test_who_sets_the_pace_is_said(name: str) -> None:
    case = recorded(name)
    texts = [verdict.text for verdict in case.diagnosis.verdicts if verdict.pid == case.truth.pid]
    assert len(texts) == 1
    assert case.truth.verdict in texts[0]


@pytest.mark.parametrize("name", ["loader-pinned", "loader-pageable"])
def test_slow_items_of_a_data_set_are_found_and_who_made_them(name: str) -> None:
    case = recorded(name)
    (incident,) = (incident for incident in case.diagnosis.incidents if incident.cause == "data-starvation")
    assert incident.line is not None
    assert incident.line.function == case.truth.line
    assert {culprit.name for culprit in incident.culprits} == {case.truth.culprit}


@pytest.mark.parametrize(
    ("name", "cause"), [("loader-pageable", "data-starvation"), ("loader-pinned", "data-starvation")]
)
def test_slow_items_are_found_at_the_time_of_the_fault(name: str, cause: str) -> None:
    case = recorded(name)
    (incident,) = (incident for incident in case.diagnosis.incidents if incident.cause == cause)
    begin_ns, end_ns = case.truth.fault_ns
    assert incident.end_ns is not None
    overlap_ns = min(end_ns, incident.end_ns) - max(begin_ns, incident.start_ns)
    assert overlap_ns / (end_ns - begin_ns) > 0.9


def test_what_a_neighbor_on_the_gpu_cost_is_what_the_marks_say() -> None:
    case = recorded("share")
    (incident,) = case.diagnosis.incidents
    begin_ns, end_ns = case.truth.fault_ns
    begins, lengths = case.truth.marks_ns[:-1], np.diff(case.truth.marks_ns)
    inside = (begins >= begin_ns) & (begins < end_ns)
    lost_ns = (lengths[inside] - np.median(lengths[~inside])).sum()
    assert incident.lost_ns == pytest.approx(lost_ns, rel=0.2)  # less what drifts: all its steps become quicker
    assert sum(culprit.lost_ns for culprit in incident.culprits) == incident.lost_ns


def test_a_profiler_that_the_program_starts_is_named_by_its_line() -> None:
    (incident,) = recorded("nosync-profiled").diagnosis.incidents
    assert incident.line is not None
    assert incident.line.function == "profiled"


def test_what_a_busy_loop_on_the_same_cpu_cost_is_mostly_explained() -> None:
    """72%: the recording lacks stacks for most of the fault, so that the rest stays unexplained."""
    case = recorded("hog")
    begin_ns, end_ns = case.truth.fault_ns
    (incident,) = (one for one in case.diagnosis.incidents if one.start_ns < end_ns and (one.end_ns or 0) > begin_ns)
    assert incident.explained_ratio > 0.7


def test_the_drop_to_a_busy_loop_is_what_the_marks_say() -> None:
    case = recorded("hog")
    (incident,) = case.diagnosis.incidents
    assert incident.end_ns is not None
    begins, lengths = case.truth.marks_ns[:-1], np.diff(case.truth.marks_ns)
    inside = (begins >= incident.start_ns) & (begins < incident.end_ns)
    lost_ns = (lengths[inside] - np.median(lengths[begins < incident.start_ns])).sum()
    unexplained_ns = incident.lost_ns  # of what is unexplained, only that part is its own
    assert unexplained_ns / (1 - incident.explained_ratio) == pytest.approx(lost_ns, rel=0.05)
