"""Files whose calls or lines could not be seen: causes that need them are listed with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import ScriptedRun, Step
from ingero.store.records import PYTHON_LINES
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, diagnosed_file


def reasons(folder: Path, *, symbol: str, is_attached: bool = False) -> dict[str, list[str]]:
    """Why each cause was not checked, where a recording says this of a file."""
    path = folder / "unseen.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        run.train(run.process(100, "python"), 0, LENGTH_S, Step())
        run.append(
            tables.PROBES, library="/app/trainer", symbol=symbol, is_attached=int(is_attached), reason="it is stripped"
        )
    found: dict[str, list[str]] = {}
    for one in diagnosed_file(path).not_evaluated:
        found.setdefault(one.cause, []).append(one.reason)
    return found


@pytest.mark.parametrize(
    ("symbol", "cause"),
    [
        ("libnccl", "nccl-straggler"),
        ("libcuda", "data-starvation"),
        ("libcudart", "unexpected-sync"),
        (PYTHON_LINES, "host-bound"),
    ],
)
def test_a_file_that_cannot_be_seen_silences_a_part_of_what_needs_it(tmp_path: Path, symbol: str, cause: str) -> None:
    assert "in part: it is stripped" in reasons(tmp_path, symbol=symbol)[cause]


def test_of_nccl_other_causes_need_nothing(tmp_path: Path) -> None:
    found = reasons(tmp_path, symbol="libnccl")
    assert "in part: it is stripped" not in found.get("data-starvation", [])


def test_a_single_call_that_a_library_lacks_silences_nothing(tmp_path: Path) -> None:
    assert "it is stripped" not in str(reasons(tmp_path, symbol="cudaMallocAsync"))


def test_what_is_probed_silences_nothing(tmp_path: Path) -> None:
    assert "it is stripped" not in str(reasons(tmp_path, symbol="libnccl", is_attached=True))
