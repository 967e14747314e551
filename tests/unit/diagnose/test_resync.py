"""A loop that waits for its device more often: when that is a case, and when it only begins to lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.diagnose.cases.case_search import CaseSearch
from ingero.diagnose.evidence.evidence import Evidence
from ingero.store.reader import open_reader
from ingero.store.records import Window

HEALTHY_S = 6.0
WHOLE = Step()
QUARTER = Step(idle_ms=0.16, launch_ms=0.3, busy_ms=1.5, launches=20, size_bytes=1 << 18)  # 4.4% more each


def looked_at(folder: Path, lasts_s: float, healthy_again_s: float = 0.0) -> tuple[int, bool]:
    """Of a loop cut into quarters for so long: how many cases, and whether something is seen to begin."""
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=20) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, HEALTHY_S, WHOLE)
        ends_s = HEALTHY_S + lasts_s
        run.train(trainer, HEALTHY_S, ends_s, QUARTER)
        run.train(trainer, ends_s, ends_s + healthy_again_s, WHOLE)
    until_ns = BEGIN_NS + int((ends_s + healthy_again_s) * 1e9)
    with open_reader(path) as reader:
        search = CaseSearch(Evidence(reader, Window(begin_ns=BEGIN_NS, end_ns=until_ns), is_live=True))
        return len(search.incidents()), search.has_onset()


@pytest.mark.parametrize(
    ("lasts_s", "healthy_again_s", "expected"),
    [(0.5, 0, (0, False)), (2.1, 0, (0, True)), (3.5, 0, (1, False)), (2.1, 3, (0, False))],
    ids=["not yet", "begins", "told", "over"],
)
def test_little_lost_by_more_waits_is_a_beginning_while_it_goes_on(
    tmp_path: Path, lasts_s: float, healthy_again_s: float, expected: tuple[int, bool]
) -> None:
    assert looked_at(tmp_path, lasts_s, healthy_again_s) == expected
