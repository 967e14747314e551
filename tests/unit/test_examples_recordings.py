"""The sample recordings: small, readable, and with the verdict that their README names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
from click.testing import CliRunner
from gen_sample_nodes import write_nodes

from ingero.cli.main import cli

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "recordings"
README = (RECORDINGS / "README.md").read_text()


def test_the_readme_lists_every_recording() -> None:
    assert [path.name for path in RECORDINGS.glob("*.db") if f"| [{path.name}]({path.name}) |" not in README] == []


def test_a_recording_is_small() -> None:
    assert all(path.stat().st_size < 1_000_000 for path in RECORDINGS.glob("*.db"))


def test_explain_says_of_the_sample_what_its_readme_says(tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "incident.db", tmp_path)
    done = CliRunner().invoke(cli, ["explain", "--json", "--db", str(tmp_path / "incident.db")])
    [incident] = json.loads(done.stdout)["incidents"]
    assert done.exit_code == 1
    assert f"The verdict is `{incident['cause']}`: {incident['lost_ns'] / 1e9:.2f} s lost" in README
    culprits = sorted({(one["name"], one["pid"]) for one in incident["culprits"]})
    assert f"by backup ({', '.join(str(pid) for _, pid in culprits)})" in README
    assert {name for name, _ in culprits} == {"backup"}


def test_of_three_nodes_the_slow_one_is_named(tmp_path: Path) -> None:
    nodes = [shutil.copy(RECORDINGS / f"sample-gpu-node-0{number}.db", tmp_path) for number in (1, 2, 3)]
    merged = CliRunner().invoke(cli, ["merge", *map(str, nodes), "-o", str(tmp_path / "cluster.db")])
    assert merged.exit_code == 0
    done = CliRunner().invoke(cli, ["explain", "--json", "--db", str(tmp_path / "cluster.db")])
    [incident] = json.loads(done.stdout)["incidents"]
    [culprit] = incident["culprits"]
    verdict = f"`{incident['cause']}` on {incident['node']}: {incident['lost_ns'] / 1e9:.2f} s lost by python (4100)"
    assert f"The verdict is {verdict}, by backup ({culprit['pid']})." in README


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
