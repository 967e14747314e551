"""The recordings that were published with the original: what is truly in them stands in their README."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.serve.structured.stored_findings import stored, stored_lines
from ingero.store.reader import open_reader
from tests.unit.store.test_legacy import DATA


def diagnosis_of(folder: Path, name: str) -> Diagnosis:
    """Of a whole recording."""
    path = folder / f"{name}.db"
    path.write_bytes(lzma.decompress((DATA / f"{name}.db.xz").read_bytes()))
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        return diagnose(reader, window)


def test_a_starved_gpu_is_one_incident_and_no_contention(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(tmp_path, "pytorch-dataloader-starvation")
    assert [one.cause for one in diagnosis.incidents] == ["data-starvation"]
    facts = diagnosis.incidents[0].evidence
    assert facts["idle (ratio)"] == pytest.approx(0.99, abs=0.01)
    assert facts["own switches (ratio)"] == pytest.approx(0.019, abs=0.001)


def test_all_316_chains_that_it_stored_are_one_incident(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(tmp_path, "pytorch-dataloader-starvation")
    with open_reader(tmp_path / "pytorch-dataloader-starvation.db") as reader:
        assert len(stored(reader, diagnosis.window).chains) == 316
        short = list(stored_lines(stored(reader, diagnosis.window), most=4))
    assert (len(diagnosis.incidents), short[-1]) == (1, "and 312 more: --chains")


def test_a_cause_that_was_found_is_not_among_those_that_were_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(tmp_path, "pytorch-dataloader-starvation")
    silent = {one.cause for one in diagnosis.not_evaluated}
    assert ("data-starvation" in silent, "block-io" in silent) == (False, True)


@pytest.mark.parametrize("name", ["pytorch-dataloader-starvation", "sample-gpu-node-01"])
def test_an_incident_is_at_the_time_of_the_recording(tmp_path: Path, name: str) -> None:
    diagnosis = diagnosis_of(tmp_path, name)
    (incident,) = diagnosis.incidents
    assert (incident.start_ns, incident.end_ns) == (diagnosis.window.begin_ns, diagnosis.window.end_ns)


@pytest.mark.parametrize("name", ["sample-gpu-node-02", "sample-gpu-node-03"])
def test_healthy_nodes_have_no_host_side_cause(tmp_path: Path, name: str) -> None:
    diagnosis = diagnosis_of(tmp_path, name)
    assert not diagnosis.incidents
    assert "no host-side cause was found" in diagnosis.verdicts[0].text


@pytest.mark.parametrize("name", ["sample-gpu-node-01", "sample-cluster"])
def test_synchronous_reads_are_told_by_their_timing(tmp_path: Path, name: str) -> None:
    diagnosis = diagnosis_of(tmp_path, name)
    assert [one.cause for one in diagnosis.incidents] == ["block-io"]
    assert diagnosis.incidents[0].evidence["with a request"] == 98
    assert "do not show whether a thread slept" in diagnosis.incidents[0].chain[0].structure
    assert diagnosis.incidents[0].start_ns == diagnosis.window.begin_ns


def test_causes_that_such_records_cannot_show_are_listed(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(tmp_path, "sample-gpu-node-02")
    assert "cpu-contention" in {one.cause for one in diagnosis.not_evaluated}
