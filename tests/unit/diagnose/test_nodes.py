"""A merged recording is diagnosed node by node: what is said of a node is what its own recording says."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ingero.cli.main import cli
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.serve.dashboard.answers import processes
from ingero.serve.library import open_recording
from ingero.serve.mcp.calls import stats_text, trace_stats
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.serve.text.findings_text import incident_lines
from ingero.store.errors import UnknownNodeError
from ingero.store.merge import merge
from ingero.store.reader import open_reader
from tests.unit.merged_nodes import PID, write_node

EXAMPLES = Path(__file__).parents[3] / "examples" / "recordings"
OLDER = Path(__file__).parents[2] / "data" / "ingero-0.x"
NODES = ("gpu-node-01", "gpu-node-02", "gpu-node-03")
SLOW = "gpu-node-02"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sample nodes by name, and under "" the three merged."""
    folder = tmp_path_factory.mktemp("samples")
    found = {node: Path(shutil.copy(EXAMPLES / f"sample-{node}.db", folder)) for node in NODES}
    merge(list(found.values()), folder / "cluster.db")
    return found | {"": folder / "cluster.db"}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, [*arguments])


def diagnosed(path: Path) -> Diagnosis:
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        return diagnose(reader, window)


def said(diagnosis: Diagnosis, node: str = "") -> dict[str, Any]:
    """Of one node, without what merging numbers anew."""
    found = diagnosis_json(diagnosis)
    incidents = [one for one in found["incidents"] if one["node"] == node]  # type: ignore[union-attr, index]
    for one in incidents:
        one["number"] = one["node"] = 0  # type: ignore[index, call-overload]
        for affected in one["affected"]:  # type: ignore[union-attr, index]
            affected["process"] = 0
    verdicts = [one for one in found["verdicts"] if one["node"] == node]  # type: ignore[union-attr, index]
    for one in verdicts:
        one["process"] = one["node"] = 0  # type: ignore[index, call-overload]
    return {"incidents": incidents, "verdicts": verdicts}


def test_each_node_of_the_samples_is_told_what_its_own_recording_tells(samples: dict[str, Path]) -> None:
    together = diagnosed(samples[""])
    for node in NODES:
        assert said(together, node) == said(diagnosed(samples[node]))
    assert [one.node for one in together.incidents] == [SLOW]


def test_the_published_nodes_are_told_what_their_own_databases_tell(tmp_path: Path) -> None:
    paths = {}
    for packed in OLDER.glob("*.db.xz"):
        name = packed.name.removesuffix(".db.xz")
        paths[name.removeprefix("sample-")] = tmp_path / name
        (tmp_path / name).write_bytes(lzma.decompress(packed.read_bytes()))
    cluster = paths.pop("cluster")
    merge(list(paths.values()), tmp_path / "merged.db")
    together, theirs = diagnosed(tmp_path / "merged.db"), diagnosed(cluster)
    for node, path in paths.items():
        alone = said(diagnosed(path))
        assert said(together, node) == alone
        assert said(theirs, node) == (alone if node in NODES else {"incidents": [], "verdicts": []})


def test_two_nodes_with_one_pid_and_name_and_two_faults_have_two_incidents(tmp_path: Path) -> None:
    paths = [tmp_path / f"{node}.db" for node in ("a", "b", "c")]
    for path in paths:
        write_node(path, f"node-{path.stem}", is_slow=path.stem != "c")
    merge(paths, tmp_path / "m.db")
    together = diagnosed(tmp_path / "m.db")
    assert [(one.node, one.cause, one.affected[0].pid) for one in together.incidents] == [
        ("node-a", "cpu-contention", PID),
        ("node-b", "cpu-contention", PID),
    ]
    assert [one.number for one in together.incidents] == [1, 2]
    assert {(one.node, one.has_incident) for one in together.verdicts} == {
        ("node-a", True),
        ("node-b", True),
        ("node-c", False),
    }
    alone = diagnosed(paths[0]).incidents[0]
    assert together.incidents[0].lost_ns == alone.lost_ns
    assert together.incidents[0].breakdown == alone.breakdown


def test_what_cannot_be_evaluated_on_some_nodes_names_them(tmp_path: Path) -> None:
    write_node(tmp_path / "ours.db", "ours")
    (tmp_path / "old.db").write_bytes(lzma.decompress((OLDER / "sample-gpu-node-02.db.xz").read_bytes()))
    merge([tmp_path / "ours.db", tmp_path / "old.db"], tmp_path / "m.db")
    reasons = {one.cause: one.reason for one in diagnosed(tmp_path / "m.db").not_evaluated}
    assert reasons["cpu-contention"].startswith("on gpu-node-02: ")


def test_explain_names_the_node_with_each_incident_and_process(samples: dict[str, Path]) -> None:
    done = run("explain", "--db", str(samples[""]))
    assert done.exit_code == 1
    assert "3 nodes: gpu-node-01, gpu-node-02, gpu-node-03" in done.stdout
    assert "HIGH  cpu-contention on gpu-node-02  [incident 1]" in done.stdout
    for rank, node in enumerate(NODES):
        assert f"python [4100] rank {rank} on {node}: " in done.stdout
        assert f"=== {node} ===" in done.stdout


def test_explain_json_has_the_node_of_each(samples: dict[str, Path]) -> None:
    found = json.loads(run("explain", "--json", "--per-process", "--db", str(samples[""])).stdout)
    assert [one["node"] for one in found["incidents"]] == [SLOW]
    assert [one["node"] for one in found["verdicts"]] == list(NODES)
    assert [one["node"] for one in found["per_process"]] == list(NODES)
    assert [(one["node"], one["pid"]) for one in found["cpu_users"]] == [(SLOW, 4711)]


def test_a_single_recording_says_no_node(samples: dict[str, Path]) -> None:
    done = run("explain", "--db", str(samples[SLOW]))
    assert "HIGH  cpu-contention  [incident 1]" in done.stdout
    assert " on gpu-node" not in done.stdout
    [incident] = diagnosed(samples[SLOW]).incidents
    assert next(iter(incident_lines(incident))).startswith("HIGH  cpu-contention  [incident 1]  ")


def test_a_node_that_did_not_record_in_the_window_says_so(tmp_path: Path) -> None:
    for name in ("01", "03"):
        packed = OLDER / f"sample-gpu-node-{name}.db.xz"
        (tmp_path / f"{name}.db").write_bytes(lzma.decompress(packed.read_bytes()))
    merge([tmp_path / "01.db", tmp_path / "03.db"], tmp_path / "m.db")
    done = run("explain", "--last", "1m", "--db", str(tmp_path / "m.db"))
    assert "=== gpu-node-01 ===\nNothing was recorded here in this time.\n" in done.stdout


def test_stored_chains_are_told_by_node(tmp_path: Path) -> None:
    for name in ("02", "03"):
        packed = OLDER / f"sample-gpu-node-{name}.db.xz"
        (tmp_path / f"{name}.db").write_bytes(lzma.decompress(packed.read_bytes()))
    merge([tmp_path / "02.db", tmp_path / "03.db"], tmp_path / "m.db")
    done = run("explain", "--chains", "--db", str(tmp_path / "m.db"))
    assert [line for line in done.stdout.splitlines() if line.startswith("===")] == [
        "=== gpu-node-02 ===",
        "=== gpu-node-03 ===",
    ]
    found = json.loads(run("explain", "--chains", "--json", "--db", str(tmp_path / "m.db")).stdout)
    assert [one["node"] for one in found["stored_chains"]] == ["gpu-node-02", "gpu-node-03"]


def test_query_export_and_the_library_answer_for_all_nodes(samples: dict[str, Path], tmp_path: Path) -> None:
    sql = "SELECT node, count(DISTINCT process), count(*) FROM sync_intervals GROUP BY node"
    rows = [json.loads(line) for line in run("query", "--json", "--db", str(samples[""]), sql).stdout.splitlines()]
    assert [row["node"] for row in rows] == list(NODES)
    assert [row["count(DISTINCT process)"] for row in rows] == [1, 1, 1]
    output = tmp_path / "out.json"
    assert run("export", "--format", "chrome", "-o", str(output), "--db", str(samples[""])).exit_code == 0
    exported = output.read_text()
    assert all(node in exported for node in NODES)
    with open_recording(samples[""]) as recording:
        assert [one.node for one in recording.diagnose().incidents] == [SLOW]


def test_merge_says_what_it_did(samples: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "c.db"
    done = run("merge", *(str(samples[node]) for node in (*NODES, SLOW)), "-o", str(output))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4 recordings merged: 1,064 events, 1 chains, 5 stacks, 1 incidents, ")
    assert lines[1] == "3 nodes: gpu-node-01, gpu-node-02, gpu-node-03"
    assert lines[2] == "1 session found in more than one file: taken once"
    assert lines[3].startswith(str(output))


@pytest.mark.parametrize("name", ["a:b", "a b", "';--"])
def test_a_forced_node_has_to_be_a_name(samples: dict[str, Path], tmp_path: Path, name: str) -> None:
    done = run("merge", str(samples[SLOW]), "-o", str(tmp_path / "c.db"), "--force-node", name)
    assert done.exit_code != 0
    assert not (tmp_path / "c.db").exists()


def test_one_node_can_be_asked_for(samples: dict[str, Path], tmp_path: Path) -> None:
    path = str(samples[""])
    found = json.loads(run("explain", "--json", "--node", SLOW, "--db", path).stdout)
    alone = json.loads(run("explain", "--json", "--db", str(samples[SLOW])).stdout)
    assert [one["headline"] for one in found["incidents"]] == [one["headline"] for one in alone["incidents"]]
    assert len(found["verdicts"]) == 1
    assert run("explain", "--node", "gpu-node-01", "--db", path).exit_code == 0
    output = tmp_path / "out.json"
    assert run("export", "--format", "chrome", "--node", SLOW, "-o", str(output), "--db", path).exit_code == 0
    assert SLOW in output.read_text()
    assert "gpu-node-01" not in output.read_text()


def test_a_node_that_is_not_there_is_told_with_those_that_are(samples: dict[str, Path]) -> None:
    done = run("explain", "--node", "'; DROP TABLE raw_events; --", "--db", str(samples[""]))
    assert isinstance(done.exception, UnknownNodeError)
    assert done.exception.hint == "--node with one of: gpu-node-01, gpu-node-02, gpu-node-03"


def test_dashboard_and_mcp_say_on_which_node_a_process_is(samples: dict[str, Path]) -> None:
    with open_reader(samples[""]) as reader:
        window = reader.window(None, 0)
        assert window is not None
        assert [one["node"] for one in processes(reader, window)["processes"]] == list(NODES)  # type: ignore[union-attr, index, call-overload]
        stats = trace_stats(reader, window, None)
    assert {one["node"] for one in stats["ops"]} == {f"«{node}»" for node in NODES}
    assert f"(pid 4100 on «{SLOW}»)" in stats_text(stats)
    with open_reader(samples[SLOW]) as reader:
        assert "node" not in trace_stats(reader, window, None)["ops"][0]
