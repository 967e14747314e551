"""The line of each GPU in the header of an account."""

from __future__ import annotations

from pathlib import Path

from ingero.serve.text.gpu_lines import gpu_lines
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND_NS
GIB = 1 << 30


def lines(folder: Path, *samples: dict[str, tables.Column], seconds: int | None = None) -> list[str]:
    """Of samples that come one a second."""
    path = folder / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="n") as writer:
        for second, sample in enumerate(samples):
            columns = {"uuid": "GPU-a", "gpu_index": 0, "time_ns": BEGIN_NS + second * SECOND_NS, **sample}
            writer.append(tables.GPU_SAMPLES, tables.GPU_SAMPLES.rows(1, session=writer.session, **columns))
    end_ns = BEGIN_NS + (len(samples) if seconds is None else seconds) * SECOND_NS
    with open_reader(path) as reader:
        return list(gpu_lines(reader, Window(begin_ns=BEGIN_NS, end_ns=end_ns)))


def test_a_gpu_is_said_to_be_busy_slow_and_throttled(tmp_path: Path) -> None:
    sample: dict[str, tables.Column] = {"gpu_percent": 97, "sm_clock_mhz": 1410, "max_sm_clock_mhz": 1980}
    throttled = [{**sample, "throttle_reasons": 0x4 if second < 3 else 0x1} for second in range(4)]
    assert lines(tmp_path, *throttled) == ["GPU 0: 97% busy, 1410 of 1980 MHz, throttled by power cap 75% of the time"]


def test_memory_is_the_most_that_was_in_use(tmp_path: Path) -> None:
    used = [{"gpu_percent": 0, "memory_used_bytes": size * GIB, "memory_total_bytes": 80 * GIB} for size in (20, 40)]
    assert lines(tmp_path, *used) == ["GPU 0: 0% busy, memory up to 40.0 GiB of 80.0 GiB"]


def test_what_the_driver_does_not_tell_is_not_zero(tmp_path: Path) -> None:
    assert lines(tmp_path, {}) == ["GPU 0: utilization not reported by its driver"]


def test_missing_samples_are_said(tmp_path: Path) -> None:
    assert lines(tmp_path, {"gpu_percent": 50}, seconds=60) == ["GPU 0: 50% busy, by samples of 1 of 60 s"]


def test_each_gpu_has_its_line_and_without_samples_there_is_none(tmp_path: Path) -> None:
    first, second = {"gpu_percent": 10}, {"gpu_percent": 20, "uuid": "GPU-b", "gpu_index": 1, "time_ns": BEGIN_NS}
    assert lines(tmp_path, second, first) == [
        "GPU 0: 10% busy",
        "GPU 1: 20% busy",
    ]
    (tmp_path / "idle").mkdir()
    assert lines(tmp_path / "idle", seconds=5) == []
