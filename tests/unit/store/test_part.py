"""A part of a recording answers what the whole one answers about that time, is bounded, and gives no secret away."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingero.demo.scenarios.scripts import take_cpu
from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.diagnose.diagnosis import diagnose
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.store.errors import EmptyPartError, LargePartError
from ingero.store.merge import extract_part, merge
from ingero.store.merge.part import Part
from ingero.store.opening.own_schema import own_columns
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.units import SECOND_NS
from tests.unit.merged_nodes import write_full

MOST_BYTES = 64 << 20
SECRET = "hf_0123456789abcdefghij"
TABLES = [name for name in own_columns() if name.startswith("raw_")]


def seconds(begin: float, end: float) -> Window:
    return Window(begin_ns=BEGIN_NS + int(begin * SECOND_NS), end_ns=BEGIN_NS + int(end * SECOND_NS))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes of training; from the 60th to the 70th second a backup takes the CPUs."""
    path = tmp_path_factory.mktemp("part") / "long.db"
    with ScriptedRun(path, seconds=120, node="node-a", options={"otlp-token": SECRET}) as run:
        trainer = run.process(100, "python", cmdline=f"python train.py --hf-token {SECRET} --lr 0.1")
        run.train(trainer, 0, 60, Step())
        late = Step(return_delay_ms=37.05, sync={"runq": 37.0})
        take_cpu(run, trainer, run.train(trainer, 60, 70, late), 37.0, [(4711, "backup")])
        run.train(trainer, 70, 120, Step())
        run.scheduling(100, 1.0, process=trainer.number, policy="other", nice=0, cpus_allowed="0-3")
        for second in range(0, 120, 5):
            run.call(trainer, "cudaLaunchKernel", second, 0.5, stack_hash=run.stack([(f"{second}.py", 1, "f")]))
        run.call(trainer, "cudaStreamSynchronize", 29, 2000)
        for second in range(1, 120):
            run.second(trainer, second, run=500, sleep=500)
    return path


@pytest.fixture(scope="module")
def taken(long: Path) -> Path:
    """From the 30th to the 90th second."""
    path = long.with_name("part.db")
    extract_part(long, path, Part(window=seconds(30, 90), most_bytes=MOST_BYTES))
    return path


def diagnosed(path: Path, window: Window) -> dict[str, Any]:
    with open_reader(path) as reader:
        return dict(diagnosis_json(diagnose(reader, window)))


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with open_reader(path) as reader:
        return list(reader.connection.execute(sql))


def counts(path: Path) -> dict[str, int]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    return {table: next(iter(db.execute(f"SELECT count(*) FROM {table}")))[0] for table in TABLES}


def test_of_its_time_it_says_what_the_whole_recording_says(long: Path, taken: Path, tmp_path: Path) -> None:
    merge([taken], tmp_path / "merged.db")
    whole = diagnosed(long, seconds(30, 90))
    assert [one["cause"] for one in whole["incidents"]] == ["cpu-contention"]
    assert diagnosed(tmp_path / "merged.db", seconds(30, 90)) == whole


def test_a_part_soon_after_the_recorders_start_knows_when_that_was(long: Path, tmp_path: Path) -> None:
    for begin_s, started_s in ((20, 1), (40, 0)):  # 0: longer ago than it matters
        part = tmp_path / f"{begin_s}.db"
        extract_part(long, part, Part(window=seconds(begin_s, 80), most_bytes=MOST_BYTES))
        with open_reader(long) as reader:
            assert reader.counting_since_ns(BEGIN_NS) == seconds(1, 80).begin_ns
        with open_reader(part) as reader:
            assert reader.counting_since_ns(BEGIN_NS) == seconds(started_s, 80).begin_ns


def test_what_reaches_into_it_takes_along_what_happened_meanwhile(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "slow.db", seconds=60, node="node-a") as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 20, Step())
        run.train(trainer, 20, 40, Step(busy_ms=9_000, return_delay_ms=1_000))
        run.train(trainer, 40, 60, Step())
        for second in range(60):
            run.off_cpu(trainer, second, second + 0.1, "sleep")
    extract_part(tmp_path / "slow.db", tmp_path / "part.db", Part(window=seconds(35, 50), most_bytes=MOST_BYTES))
    [(first_ns,)] = ask(tmp_path / "part.db", "SELECT min(start_ns) FROM raw_offcpu")
    since = f"WHERE sync_end_ns >= {seconds(35, 50).begin_ns}"
    [(begin_ns,)] = ask(tmp_path / "part.db", f"SELECT min(prev_sync_end_ns) FROM raw_sync_intervals {since}")
    assert seconds(29, 50).begin_ns < begin_ns < seconds(32, 50).begin_ns
    assert 0 <= first_ns - begin_ns < SECOND_NS


def test_it_holds_that_time_and_what_reaches_into_it(long: Path, taken: Path) -> None:
    [(first, last)] = ask(taken, "SELECT min(sync_end_ns), max(prev_sync_end_ns) FROM raw_sync_intervals")
    assert seconds(29.98, 90).begin_ns <= first < last < seconds(30, 90).end_ns
    assert taken.stat().st_size < 0.7 * long.stat().st_size
    assert ask(taken, "SELECT max(duration_ns) FROM raw_events") == [(2 * SECOND_NS,)]
    assert ask(taken, "SELECT count(*) FROM raw_scheduling") == [(1,)]  # from long before, and still in force
    stacks = ask(taken, "SELECT count(*), sum(frames LIKE '%45.py%'), sum(frames LIKE '%95.py%') FROM raw_stacks")
    assert stacks == [(12, 1, 0)]
    assert ask(taken, "SELECT last_seen_ns, stopped_ns FROM raw_sessions") == [(seconds(0, 90).end_ns,) * 2]


def test_a_part_of_all_time_has_every_row(tmp_path: Path) -> None:
    write_full(tmp_path / "full.db", "node-a")
    whole = Window(begin_ns=0, end_ns=2**62)
    extract_part(tmp_path / "full.db", tmp_path / "part.db", Part(window=whole, most_bytes=MOST_BYTES))
    found, wanted = counts(tmp_path / "part.db"), counts(tmp_path / "full.db")
    assert wanted.pop("raw_stacks") == 3
    assert found.pop("raw_stacks") == 1  # the others nobody names
    assert found == wanted


def test_command_lines_and_options_lose_their_secrets_and_the_source_stays_as_it_is(long: Path, tmp_path: Path) -> None:
    before = hashlib.sha256(long.read_bytes()).hexdigest()
    extract_part(long, tmp_path / "part.db", Part(window=seconds(30, 90), most_bytes=MOST_BYTES))
    assert hashlib.sha256(long.read_bytes()).hexdigest() == before
    assert SECRET.encode() in long.read_bytes()
    assert SECRET.encode() not in (tmp_path / "part.db").read_bytes()
    assert ask(tmp_path / "part.db", "SELECT cmdline FROM raw_processes WHERE pid = 100") == [
        ("python train.py --hf-token [secret] --lr 0.1",)
    ]


def test_more_than_it_may_have_is_refused_and_leaves_nothing(long: Path, tmp_path: Path) -> None:
    with pytest.raises(LargePartError, match="more than"):
        extract_part(long, tmp_path / "part.db", Part(window=seconds(0, 120), most_bytes=100_000))
    assert list(tmp_path.iterdir()) == []


def test_a_time_in_which_nothing_was_recorded_is_said_to_be_one(long: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptyPartError, match="nothing was recorded from"):
        extract_part(long, tmp_path / "part.db", Part(window=seconds(500, 600), most_bytes=MOST_BYTES))


def test_of_the_whole_and_a_part_a_merge_takes_the_whole(long: Path, taken: Path, tmp_path: Path) -> None:
    for number, order in enumerate(([long, taken], [taken, long])):
        merged = merge(order, tmp_path / f"{number}.db")
        assert (merged.repeated, merged.nodes) == (1, ("node-a",))
        assert counts(tmp_path / f"{number}.db") == counts(long)
