"""Live disturbances that workloads read from a file."""

from pathlib import Path

import pytest

from ingero.demo.workloads.host_knobs import HostKnobs, HostState


def test_without_a_file_nothing_is_disturbed(tmp_path: Path) -> None:
    assert HostKnobs(tmp_path / "none").read() == HostState()


def test_a_change_keeps_the_other_values(tmp_path: Path) -> None:
    knobs = HostKnobs(tmp_path / "knobs")
    knobs.write(HostState(worker_sleep_ms=25, stall_every=20))
    knobs.change(gil_duty=0.5)
    assert knobs.read() == HostState(worker_sleep_ms=25, stall_every=20, gil_duty=0.5)


def test_a_change_returns_the_state_to_go_back_to(tmp_path: Path) -> None:
    knobs = HostKnobs(tmp_path / "knobs")
    knobs.write(HostState(stall_ms=3))
    before = knobs.change(stall_ms=20)
    assert before == HostState(stall_ms=3)


def test_a_disturbance_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="worker_nap_ms"):
        HostKnobs(tmp_path / "knobs").change(worker_nap_ms=1)
