"""An account says what was traced less, since when, for how long and why."""

from __future__ import annotations

from pathlib import Path

from ingero.serve.text.coverage import coverage_lines
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

START_NS = 1_790_000_000_000_000_000
S = 1_000_000_000


def lines(folder: Path, steps: list[tuple[int, str, str]], begin_s: int, end_s: int) -> list[str]:
    """steps: second, what is not traced, reason."""
    with Writer(folder / "r.db", session=SessionFacts(uuid="u", started_ns=START_NS), node="n") as writer:
        for at_s, not_traced, reason in steps:
            row = tables.OVERHEAD_LEVELS.rows(
                1,
                session=writer.session,
                time_ns=START_NS + at_s * S,
                level=int(bool(not_traced)),
                not_traced=not_traced,
                reason=reason,
            )
            writer.append(tables.OVERHEAD_LEVELS, row)
    with open_reader(folder / "r.db") as reader:
        return list(coverage_lines(reader, Window(begin_ns=START_NS + begin_s * S, end_ns=START_NS + end_s * S)))


STEPS = [(0, "", "start"), (10, "no launches,no copies", "too many"), (30, "", "the load has fallen")]


def test_where_everything_was_traced_nothing_is_said(tmp_path: Path) -> None:
    assert lines(tmp_path, STEPS, 0, 10) == []
    assert lines(tmp_path, STEPS, 31, 60) == []


def test_each_thing_given_up_is_told_with_its_time_and_reason(tmp_path: Path) -> None:
    found = lines(tmp_path, STEPS, 0, 60)
    assert found[0].startswith("Tracing was reduced")
    assert [line.partition(", for ")[2] for line in found[1:]] == [
        "20.0 s: no launches (too many)",
        "20.0 s: no copies (too many)",
    ]


def test_what_was_given_up_before_the_window_is_told_for_its_part_in_it(tmp_path: Path) -> None:
    found = lines(tmp_path, STEPS, 25, 60)
    assert found[1].endswith("for 5.00 s: no launches (too many)")


def test_what_is_given_up_at_the_end_lasts_to_the_end(tmp_path: Path) -> None:
    found = lines(tmp_path, STEPS[:2], 0, 40)
    assert found[1].endswith("for 30.0 s: no launches (too many)")


def test_what_one_recording_gave_up_ends_with_it(tmp_path: Path) -> None:
    for begin_s, end_s, not_traced in ((0, 30, "no launches"), (1000, 1060, "")):
        facts = SessionFacts(uuid="u", started_ns=START_NS + begin_s * S)
        with Writer(tmp_path / "r.db", session=facts, node="n", clock=lambda: START_NS + end_s * S) as writer:  # noqa: B023
            row = tables.OVERHEAD_LEVELS.rows(
                1,
                session=writer.session,
                time_ns=START_NS + (begin_s + 10) * S,
                level=int(bool(not_traced)),
                not_traced=not_traced,
                reason="too many",
            )
            writer.append(tables.OVERHEAD_LEVELS, row)
    with open_reader(tmp_path / "r.db") as reader:
        found = list(coverage_lines(reader, Window(begin_ns=START_NS, end_ns=START_NS + 1060 * S)))
        assert found[1].endswith("for 20.0 s: no launches (too many)")
        assert not list(coverage_lines(reader, Window(begin_ns=START_NS + 900 * S, end_ns=START_NS + 1060 * S)))
