"""How right `ingero import` and `explain` are about profiles of real GPUs, and `compare` about pairs of them.

Run: python -m bench.profiles [FOLDER] [--json]. The folder holds profiles (Kineto .json.gz or .tar.gz, Nsight
.sqlite.xz); by default ../shared/data/gpu-recordings. For each: steps found and marked, how far step times are from
the marks', what sets the pace, how busy the GPU is said to be and how busy it was by a computation of its own
(bench/profile_truth.py), the incidents, the time to import. Then two pairs before and after a change, one of two
programs, and who came last to the collectives of eight ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.profile_truth import Truth, truths
from ingero.diagnose.comparison.compare import compare
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.diagnose.profile.report import ProfileReport
from ingero.profiles.reading import read_profiles
from ingero.profiles.recording import write_recording
from ingero.serve.text.comparison_text import comparison_lines
from ingero.store.reader import open_reader
from ingero.store.records import Window

FOLDER = Path("../shared/data/gpu-recordings")
_PATTERNS = ("*.json.gz", "*.sqlite.xz", "*.tar.gz")
_PAIRS = (
    ("kineto-resnet50-loader0", "kineto-resnet50-loader4"),
    ("nsys-ai-mfu_2gpu_before", "nsys-ai-mfu_2gpu_after"),
    ("hta-trace_diff-control", "hta-df_index_resolver"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One process of one profile. Errors of step times in ms, None where the counts differ or nothing is marked."""

    file: str
    rank: int | None
    steps: int
    marked: int
    error_median_ms: float | None
    error_p95_ms: float | None
    paced_by: str
    busy_said: float
    busy_measured: float
    incidents: str
    import_s: float


def main() -> None:
    """Print the score, or write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    files = sorted(path for pattern in _PATTERNS for path in options.folder.glob(pattern))
    with tempfile.TemporaryDirectory() as kept:
        rows = [row for path in files for row in _rows(path, Path(kept))]
        if options.json:
            json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
            return
        for line in (*_table(rows), *_last_ranks(files, Path(kept)), *_comparisons(Path(kept))):
            print(line)


def name_of(path: Path) -> str:
    """A profile's name without its endings."""
    return path.name.split(".")[0]


def imported(path: Path, kept: Path) -> Path:
    """The recording of a profile, made where it is not there yet."""
    recording = kept / f"{name_of(path)}.db"
    if not recording.exists():
        read = read_profiles((path,))
        write_recording(recording, read.profiles, read.notes, files=read.files)
    return recording


def diagnosed(recording: Path) -> Diagnosis:
    """The diagnosis of the whole recording, as `explain` makes it."""
    with open_reader(recording) as reader:
        return diagnose(reader, reader.time_range() or Window(begin_ns=0, end_ns=1))


def _rows(path: Path, kept: Path) -> Iterator[Row]:
    begin = time.monotonic()
    recording = imported(path, kept)
    took = time.monotonic() - begin
    found = diagnosed(recording)
    reports = found.profiles.reports if found.profiles else ()
    for report, truth in zip(reports, truths(path), strict=True):
        yield _row(name_of(path), report, truth, found, took)


def _row(name: str, report: ProfileReport, truth: Truth, found: Diagnosis, took: float) -> Row:
    errors = step_errors_ms(report, truth)
    mine = [one for one in found.incidents if any(v.process == report.process.process for v in one.affected)]
    return Row(
        file=name,
        rank=report.process.rank,
        steps=len(report.steps),
        marked=len(truth.step_ms),
        error_median_ms=float(np.median(errors)) if errors else None,
        error_p95_ms=float(np.quantile(errors, 0.95)) if errors else None,
        paced_by=report.paced_by.value,
        busy_said=report.busy_ratio,
        busy_measured=truth.busy_ratio,
        incidents=", ".join(f"{one.cause} {one.lost_ratio:.0%}" for one in mine) or "none",
        import_s=took,
    )


def step_errors_ms(report: ProfileReport, truth: Truth) -> list[float]:
    """The difference (ms) between the time of each step and that of its mark."""
    if len(report.steps) != len(truth.step_ms):
        return []
    pairs = zip(report.steps, truth.step_ms, strict=True)
    return [abs(step.step_ns / 1e6 - marked) for step, marked in pairs]


def _table(rows: list[Row]) -> Iterator[str]:
    heads = f"{'profile':28}{'steps':>9}{'error p50/p95 ms':>18}{'pace':>8}{'busy said/measured':>20}{'import':>9}"
    yield f"{heads}  incidents"
    for row in rows:
        name = row.file[:24] + (f" r{row.rank}" if row.rank is not None else "")
        steps = f"{row.steps}/{row.marked or '-'}"
        errors = "-" if row.error_median_ms is None else f"{row.error_median_ms:.2f}/{row.error_p95_ms:.2f}"
        busy = f"{row.busy_said:.1%}/{row.busy_measured:.1%}"
        yield (f"{name:28}{steps:>9}{errors:>18}{row.paced_by:>8}{busy:>20}{row.import_s:>7.1f} s  {row.incidents}")


def _last_ranks(files: list[Path], kept: Path) -> Iterator[str]:
    for path in files:
        found = diagnosed(imported(path, kept)).profiles
        together = found.collectives if found else ()
        if together and together[0].parts[0].rank is not None:
            ranks = ",".join(str(one.rank_of(one.last)) for one in together)
            yield f"{name_of(path)}: last to the {len(together)} collectives: {ranks}"


def _comparisons(kept: Path) -> Iterator[str]:
    for before, after in _PAIRS:
        paths = [kept / f"{name}.db" for name in (before, after)]
        if all(path.exists() for path in paths):
            yield f"{before} > {after}:"
            with open_reader(paths[0]) as first, open_reader(paths[1]) as second:
                windows = [reader.time_range() or Window(begin_ns=0, end_ns=1) for reader in (first, second)]
                lines = list(comparison_lines(compare(first, windows[0], second, windows[1])))
            end = next(place for place, line in enumerate(lines) if line.startswith("call "))
            yield from (f"  {line}".rstrip() for line in lines[:end] if line)


if __name__ == "__main__":
    main()
