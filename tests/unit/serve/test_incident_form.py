"""An incident has one form: the same parts by the same names, in the same order, as text, as JSON and for MCP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Contributing, Incident, Link
from ingero.diagnose.incidents.incident_json import incident_json
from ingero.serve.mcp.incidents import incident_json as marked_json
from ingero.serve.mcp.incidents import incident_text
from ingero.serve.text.findings_text import incident_lines
from ingero.serve.text.incident_form import details, sections, title_line
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, diagnosed

ORDER = (
    "impact", "where", "fix", "breakdown", "affected", "culprits", "contributing", "evidence", "timeline",
)  # fmt: skip


def hogged(run: ScriptedRun, trainer: Actor) -> None:
    """CPU hogs take 3 ms of each step."""
    run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"runq": 3}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.culprit(trainer, 900, "stress-ng", second, 300, switches=100)


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    one = diagnosed(Path(tmp_path_factory.mktemp("form")), hogged).incidents[0]
    other = Contributing(cause="gil", lost_ns=10**9, share_ratio=0.25, headline="python [100] waited for its GIL")
    return replace(one, contributing=(other,), affected=(*one.affected, replace(one.affected[0], pid=101)))


def test_sections_are_the_parts_of_the_json_in_its_order(incident: Incident) -> None:
    keys = [section.key for section in sections(incident)]
    assert keys == list(ORDER)
    assert [key for key in incident_json(incident) if key in ORDER] == keys


def test_mcp_has_the_same_keys_and_the_same_sections(incident: Incident) -> None:
    assert list(marked_json(incident)) == list(incident_json(incident))
    titles = [line.strip(" :") for line in incident_text(incident) if line.startswith("  ") and line.endswith(":")]
    behind = details(incident)
    assert behind is not None
    assert [one for one in titles if not one.startswith("«")] == [one.title for one in (*sections(incident), behind)]


def test_the_headline_stands_alone_below_the_title_and_impact_comes_first(incident: Incident) -> None:
    lines = list(incident_lines(incident))
    assert lines[0] == title_line(incident)
    assert lines[2] == f"  {incident.summary}"
    assert lines[4].startswith("  Impact ")


def test_a_name_in_a_section_is_marked_as_data_for_an_assistant(incident: Incident) -> None:
    named = [line for line in incident_text(incident) if "stress-ng" in line]
    assert named
    assert all("«" in line for line in named)


def test_the_breakdown_adds_up_to_the_lost_time(incident: Incident) -> None:
    found = incident_json(incident)
    lost = [one["lost_ns"] for one in found["breakdown"]]  # type: ignore[index, union-attr, call-overload]
    assert sum(lost) == pytest.approx(found["impact"]["lost_ns"], rel=0.01)  # type: ignore[index, call-overload]
    assert {one["part"] for one in found["breakdown"]} <= {  # type: ignore[index, union-attr, call-overload]
        "idle", "launch", "busy", "return_delay", "host", "blocked",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the producer was computing", "The producer was computing"),
        ("rank 1 entered late", "Rank 1 entered late"),
        ("cudaMalloc at train.py:3 was called", "cudaMalloc at train.py:3 was called"),
        ("pt_data_worker [40] was computing", "pt_data_worker [40] was computing"),
        ("python [40] waited", "python [40] waited"),
        ("backup (40, 41) ran", "backup (40, 41) ran"),
    ],
)
def test_a_sentence_that_begins_with_a_name_keeps_it(incident: Incident, text: str, shown: str) -> None:
    (evidence,) = (one for one in sections(replace(incident, chain=(Link(text=text),))) if one.key == "evidence")
    assert evidence.lines == (shown,)
