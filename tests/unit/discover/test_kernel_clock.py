"""discover.kernel_clock: the kernel's clocks, of what a process in a time namespace is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ingero.discover import kernel_clock
from ingero.discover.kernel_clock import TimeNamespaceError, TimeNamespaceOffsets, read_offsets

INITIAL = "time:[4026531834]"


def process(folder: Path, own: str, of_children: str, offsets: str = "") -> Path:
    """A process's folder in a made-up /proc."""
    (folder / "ns").mkdir()
    (folder / "ns/time").symlink_to(own)
    (folder / "ns/time_for_children").symlink_to(of_children)
    (folder / "timens_offsets").write_text(offsets)
    return folder


def test_what_a_time_namespace_adds_is_read(tmp_path: Path) -> None:
    text = "monotonic        5000         0\nboottime         3600 500000000\n"  # as kernel/time/namespace.c prints it
    found = read_offsets(process(tmp_path, "time:[4026532280]", "time:[4026532280]", text))
    assert found == TimeNamespaceOffsets(5_000 * 10**9, 3_600_500_000_000)


def test_the_first_time_namespace_adds_nothing_whatever_its_children_will_have(tmp_path: Path) -> None:
    text = "monotonic        5000         0\nboottime         5000         0\n"
    assert read_offsets(process(tmp_path, INITIAL, "time:[4026532280]", text)) == TimeNamespaceOffsets(0, 0)


def test_a_kernel_without_time_namespaces_adds_nothing(tmp_path: Path) -> None:
    assert read_offsets(tmp_path) == TimeNamespaceOffsets(0, 0)


def test_offsets_that_only_the_children_have_are_not_taken_for_its_own(tmp_path: Path) -> None:
    with pytest.raises(TimeNamespaceError, match="another time namespace than its children"):
        read_offsets(process(tmp_path, "time:[4026532280]", "time:[4026532281]", "monotonic 1 0\nboottime 1 0\n"))


@pytest.mark.parametrize("shift", ["boottime            1   1000000", "boottime           -2         0"])
def test_a_shift_that_hides_when_processes_started_is_refused(tmp_path: Path, shift: str) -> None:
    text = f"monotonic           0         0\n{shift}\n"
    with pytest.raises(TimeNamespaceError, match="/proc does not show to the clock tick when processes started"):
        read_offsets(process(tmp_path, "time:[4026532280]", "time:[4026532280]", text))


def test_the_kernels_clocks_are_this_processs_without_the_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_clock, "own_offsets", lambda: TimeNamespaceOffsets(5_000 * 10**9, 7_000 * 10**9))
    before_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    found_ns = kernel_clock.monotonic_ns() + 5_000 * 10**9, kernel_clock.boottime_ns() + 7_000 * 10**9
    after_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert all(before <= found <= after for before, found, after in zip(before_ns, found_ns, after_ns, strict=True))
    assert kernel_clock.start_ticks(700_042) == 42
