"""Scripted recordings agree with themselves, and fill what a real recording fills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingero.demo.scenarios import SCENARIOS
from ingero.demo.whole_scene import FullScriptedRun
from ingero.events import STATES

RECORDINGS = Path(__file__).resolve().parents[3] / "examples" / "recordings"
REAL = RECORDINGS / "incident.db"
NAMES = [*(one.name for one in SCENARIOS), "sample-gpu-node-02"]
EVERY = pytest.mark.parametrize("name", NAMES)
NOT_SCRIPTED = {
    "raw_drops": "a script loses nothing",
    "raw_incidents": "stored when the script has ended (test_stories.py)",
    "raw_causal_chains": "stored when the script has ended (test_stories.py)",
    "raw_allocations": "the loops allocate before they are recorded",
    "raw_memory_seconds": "the loops allocate before they are recorded",
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of every demo, and a published node."""
    folder = tmp_path_factory.mktemp("scripted")
    paths = {"sample-gpu-node-02": RECORDINGS / "sample-gpu-node-02.db"}
    for scenario in SCENARIOS:
        paths[scenario.name] = folder / f"{scenario.name}.db"
        with FullScriptedRun(paths[scenario.name], seconds=scenario.seconds) as run:
            scenario.script(run)
    return paths


@pytest.fixture
def db(recordings: dict[str, Path], name: str) -> Iterator[apsw.Connection]:
    """One of them, open."""
    opened = apsw.Connection(str(recordings[name]), flags=apsw.SQLITE_OPEN_READONLY)
    yield opened
    opened.close()


@EVERY
def test_sync_calls_spent_what_their_threads_spent_in_the_intervals(db: apsw.Connection) -> None:
    columns = ", ".join(f"sum({name}_ns)" for name in STATES)
    calls = {
        (process, source, op): sums
        for process, source, op, *sums in db.execute(
            f"SELECT process, source, op, {columns} FROM raw_op_stats WHERE sum_ns > 0 GROUP BY 1, 2, 3"
        )
    }
    columns = ", ".join(f"sum(sync_{name}_ns)" for name in STATES)
    intervals = list(db.execute(f"SELECT process, source, op, {columns} FROM raw_sync_intervals GROUP BY 1, 2, 3"))
    assert intervals
    for process, source, op, *sums in intervals:
        assert calls[process, source, op] == sums


@EVERY
def test_steps_spent_what_their_intervals_spent(db: apsw.Connection) -> None:
    for name in STATES:
        parts = f"sum(idle_{name}_ns + launch_{name}_ns), sum(sync_{name}_ns)"
        steps = f"sum(host_{name}_ns), sum(blocked_{name}_ns)"
        of_intervals = list(db.execute(f"SELECT process, {parts} FROM raw_sync_intervals GROUP BY 1"))
        assert list(db.execute(f"SELECT process, {steps} FROM raw_steps GROUP BY 1")) == of_intervals


@EVERY
def test_intervals_off_the_cpu_last_as_long_as_the_states_say(db: apsw.Connection) -> None:
    states = " + ".join(f"{part}_{name}_ns" for part in ("idle", "launch", "sync") for name in STATES if name != "run")
    of_intervals = list(db.execute(f"SELECT process, sum({states}) FROM raw_sync_intervals GROUP BY 1"))
    assert list(db.execute("SELECT process, sum(duration_ns) FROM raw_offcpu GROUP BY 1")) == of_intervals


@EVERY
def test_who_ran_instead_ran_for_as_long_as_the_threads_were_runnable(db: apsw.Connection) -> None:
    [(runnable,)] = db.execute("SELECT sum(idle_runq_ns + launch_runq_ns + sync_runq_ns) FROM raw_sync_intervals")
    assert list(db.execute("SELECT coalesce(sum(ns), 0) FROM raw_culprits")) == [(runnable,)]
    assert list(db.execute("SELECT coalesce(sum(culprit_ns), 0) FROM raw_offcpu")) == [(runnable,)]


@EVERY
def test_the_calls_that_have_rows_are_counted(db: apsw.Connection) -> None:
    counted = list(
        db.execute("SELECT source, op, sum(recorded) FROM raw_op_stats GROUP BY 1, 2 HAVING sum(recorded) > 0")
    )
    assert list(db.execute("SELECT source, op, count(*) FROM raw_events GROUP BY 1, 2")) == counted
    assert list(db.execute("SELECT count(*) FROM raw_events WHERE stack_hash = 0")) == [(0,)]


@EVERY
def test_every_table_that_a_real_recording_fills_is_filled(db: apsw.Connection, name: str) -> None:
    wanted = filled(apsw.Connection(str(REAL), flags=apsw.SQLITE_OPEN_READONLY)) - NOT_SCRIPTED.keys()
    missing = wanted - filled(db)
    assert missing <= ({"raw_culprits"} if name not in ("incident", "cpu-contention", "sample-gpu-node-02") else set())


def filled(db: apsw.Connection) -> set[str]:
    """The tables of what was recorded that have rows."""
    names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {name for name in names if name.startswith("raw_") and list(db.execute(f'SELECT 1 FROM "{name}" LIMIT 1'))}
