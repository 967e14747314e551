"""The knob file: defaults, per-device values, and refusals."""

from pathlib import Path

import pytest

from ingero.demo.gpusim.knobs import DEFAULTS, MAX_DEVICES, Knobs, KnobsError


def test_a_new_file_has_the_declared_defaults(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as knobs:
        assert {name: getattr(knobs, name) for name in DEFAULTS} == DEFAULTS


def test_a_value_is_seen_by_everyone_who_has_the_file_open(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as writer, Knobs(tmp_path / "ctl") as reader:
        writer.kernel_scale = 2.5
        writer.throttle_reasons = 0x20
        assert (reader.kernel_scale, reader.throttle_reasons) == (2.5, 0x20)


def test_opening_again_keeps_the_values(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as knobs:
        knobs.pcie_gbps = 0.5
    with Knobs(tmp_path / "ctl") as knobs:
        assert knobs.pcie_gbps == 0.5


def test_a_knob_without_a_device_is_set_on_all_of_them(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as knobs, Knobs(tmp_path / "ctl", device=MAX_DEVICES - 1) as last:
        knobs.hang = 1
        assert last.hang == 1


def test_a_knob_of_one_device_leaves_the_others_alone(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl", device=1) as second, Knobs(tmp_path / "ctl", device=0) as first:
        second.malloc_us = 3000
        assert (first.malloc_us, second.malloc_us) == (DEFAULTS["malloc_us"], 3000)


def test_reset_gives_every_knob_its_default_again(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as knobs:
        for name in DEFAULTS:
            setattr(knobs, name, 7)
        knobs.reset()
        assert {name: getattr(knobs, name) for name in DEFAULTS} == DEFAULTS


def test_an_unknown_knob_names_the_ones_there_are(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as knobs, pytest.raises(KnobsError, match="kernel_scael") as error:
        knobs.kernel_scael = 2
    assert "kernel_scale" in error.value.hint


def test_a_negative_value_is_refused(tmp_path: Path) -> None:
    with Knobs(tmp_path / "ctl") as knobs, pytest.raises(KnobsError, match="not negative"):
        knobs.pcie_gbps = -1


def test_a_device_outside_the_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KnobsError, match="device 16"):
        Knobs(tmp_path / "ctl", device=MAX_DEVICES)
