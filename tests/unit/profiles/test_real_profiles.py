"""Profiles of real GPUs, made by others: what is read of them is what is known of them.

They lie beside a checkout, not in it: each has its owner's licence. Two small ones: the others take minutes on CI.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.profiles.model import Profile
from ingero.profiles.reading import read_profiles
from ingero.profiles.recording import write_recording

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "gpu-recordings"


def profiles(name: str) -> list[Profile]:
    """The processes of a file; skips where the recordings are not there."""
    if not FOLDER.is_dir():
        pytest.skip("no recordings of real GPUs beside this checkout")
    return read_profiles([FOLDER / name]).profiles


def test_the_last_rank_to_arrive_waits_least_in_each_collective_of_eight_gpus() -> None:
    found = sorted(profiles("param-dlrm-8ranks.tar.gz"), key=lambda one: one.rank or 0)
    assert [(one.rank, one.world_size) for one in found] == [(rank, 8) for rank in range(8)]
    waits = []
    for one in found:
        is_nccl = np.array([text.startswith("ncclKernel") for text in one.texts])[one.activities["name"]]
        collectives = one.activities[is_nccl]
        waits.append(collectives["end_ns"] - collectives["start_ns"])
    assert np.argmin(np.stack(waits), axis=0).tolist() == [7, 7, 7, 7, 7, 5, 5, 4]


@pytest.mark.parametrize(("name", "steps", "mean_ms"), [("before", 16, 17.5), ("after", 14, 20.0)])
def test_the_steps_of_two_gpus_are_those_of_the_calls_that_repeat(
    tmp_path: Path, name: str, steps: int, mean_ms: float
) -> None:
    found = profiles(f"nsys-ai-mfu_2gpu_{name}.sqlite.xz")
    read = read_profiles([FOLDER / f"nsys-ai-mfu_2gpu_{name}.sqlite.xz"])
    write_recording(tmp_path / "run.db", found, read.notes, files=read.files)
    db = apsw.Connection(str(tmp_path / "run.db"))
    per_process = list(
        db.execute(
            "SELECT count(*), avg(duration_ns) / 1e6, group_concat(DISTINCT step_type) FROM steps GROUP BY process"
        )
    )
    db.close()
    assert [(row[0], row[2]) for row in per_process] == [(steps, "119 launches, 38 copies")] * 2
    assert [row[1] for row in per_process] == pytest.approx([mean_ms] * 2, abs=0.5)
