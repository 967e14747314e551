"""The sample recordings: small, readable, free of names of a host, and with the verdict that their README gives."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner
from gen_sample_nodes import write_nodes
from make_sample_recordings import SAMPLES, text_columns

from ingero.cli.main import cli

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "recordings"
README = (RECORDINGS / "README.md").read_text()
LARGEST_BYTES = 1_250_000  # a stack with its frames takes 1.5 kB, and each holds 150 to 250 of them
ROWS_OF_README = dict(re.findall(r"^\| \[([\w-]+)\.db\]\([\w-]+\.db\) \| (.*) \|$", README, re.MULTILINE))


def test_the_readme_lists_every_recording() -> None:
    assert sorted(ROWS_OF_README) == sorted(path.stem for path in RECORDINGS.glob("*.db"))


def test_a_recording_is_small() -> None:
    assert all(path.stat().st_size < LARGEST_BYTES for path in RECORDINGS.glob("*.db"))


@pytest.mark.parametrize("name", SAMPLES)
def test_explain_says_of_a_sample_what_its_readme_says(name: str, tmp_path: Path) -> None:
    incident = explained(RECORDINGS / f"{name}.db", tmp_path)
    row = ROWS_OF_README[name]
    assert incident["cause"] == SAMPLES[name].causes[0]
    assert f"`{incident['cause']}`" in row
    if name == "incident":
        culprits = {(one["name"], one["pid"]) for one in incident["culprits"]}
        assert {one for one, _ in culprits} == {"backup"}
    else:
        line = incident["where"]
        assert f"`{line['function']}()` at `{Path(line['file']).name}:{line['line']}`" in row


def explained(recording: Path, folder: Path) -> dict[str, Any]:
    """The only incident of a copy of it."""
    shutil.copy(recording, folder)
    done = CliRunner().invoke(cli, ["explain", "--json", "--db", str(folder / recording.name)])
    assert done.exit_code == 1
    [incident] = json.loads(done.stdout)["incidents"]
    found: dict[str, Any] = incident
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_holds_calls_with_stacks_and_no_path_of_a_host(name: str) -> None:
    db = apsw.Connection(str(RECORDINGS / f"{name}.db"), flags=apsw.SQLITE_OPEN_READONLY)
    [(calls, with_stack)] = db.execute("SELECT count(*), sum(stack_hash <> 0) FROM events WHERE source IN (1, 4)")
    assert calls > 100
    assert with_stack > 0.9 * calls
    assert [node for (node,) in db.execute("SELECT node FROM raw_sessions")] == [SAMPLES[name].node]
    for table, column in text_columns(db):
        hits = db.execute(
            f'SELECT "{column}" FROM "{table}" WHERE "{column}" GLOB \'*/root/*\' OR "{column}" GLOB \'*/home/*\''
        )
        assert list(hits) == []
    db.close()


def test_of_three_nodes_the_slow_one_is_named(tmp_path: Path) -> None:
    nodes = [shutil.copy(RECORDINGS / f"sample-gpu-node-0{number}.db", tmp_path) for number in (1, 2, 3)]
    merged = CliRunner().invoke(cli, ["merge", *map(str, nodes), "-o", str(tmp_path / "cluster.db")])
    assert merged.exit_code == 0
    done = CliRunner().invoke(cli, ["explain", "--json", "--db", str(tmp_path / "cluster.db")])
    [incident] = json.loads(done.stdout)["incidents"]
    [culprit] = incident["culprits"]
    lost_s = incident["impact"]["lost_ns"] / 1e9
    verdict = f"`{incident['cause']}` on {incident['node']}: {lost_s:.2f} s lost by python (4100)"
    assert f"The verdict is {verdict}, by backup ({culprit['pid']})." in " ".join(README.split())


def test_the_sample_nodes_are_what_their_script_writes(tmp_path: Path) -> None:
    for written in write_nodes(tmp_path):
        assert rows_of(written) == rows_of(RECORDINGS / written.name)


def rows_of(path: Path) -> dict[str, list[object]]:
    """Of every table of what was recorded; findings are worded anew now and then."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
    tables = [name for name in found if name.startswith("raw_") and name not in ("raw_incidents", "raw_causal_chains")]
    rows: dict[str, list[object]] = {name: list(db.execute(f"SELECT * FROM {name}")) for name in tables}
    db.close()
    return rows


def test_reading_a_recording_leaves_nothing_beside_it(tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "incident.db", tmp_path)
    CliRunner().invoke(cli, ["query", "--db", str(tmp_path / "incident.db"), "SELECT count(*) FROM sync_intervals"])
    assert [path.name for path in tmp_path.iterdir()] == ["incident.db"]
