"""The sample recordings: small, readable, and with the verdict that their README names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

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


def test_reading_a_recording_leaves_nothing_beside_it(tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "incident.db", tmp_path)
    CliRunner().invoke(cli, ["query", "--db", str(tmp_path / "incident.db"), "SELECT count(*) FROM epochs"])
    assert [path.name for path in tmp_path.iterdir()] == ["incident.db"]
