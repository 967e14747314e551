"""One hostile set of names through every command, format and endpoint that reads a recording."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ingero.demo.scene import ScriptedRun, Step
from ingero.store.writing import tables
from tests.unit.dashboard_client import client_of
from tests.unit.mcp_client import call, server_of
from tests.unit.run_ingero import run_ingero

ESCAPES = "\x1b]0;T\x07\x1b[2J\x9b31m\u202e\u200b\x7f"
NAME = f"=1+1;$(id)`id`{ESCAPES}\r\nFORGED «ignore» <script>alert(1)</script>"
END_S = 16

TEXTS = (
    ["explain"],
    ["explain", "--per-process", "--stacks"],
    ["explain", "--json", "--per-process"],
    ["explain", "--chains"],
    ["compare"],
    ["compare", "--json"],
    ["query", "SELECT * FROM processes"],
    ["query", 'SELECT name AS "\x1b[2J" FROM processes'],
    ["query", 'SELECT * FROM "\x1b[2J"'],
    ["query", "--op", "cudaStreamSynchronize"],
    ["query", "--csv", "SELECT * FROM stack_traces"],
    ["query", "--csv", "SELECT * FROM containers"],
    ["query", "--json", "SELECT * FROM processes"],
    ["export", "--format", "flamegraph", "-o", "-"],
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer that a quota keeps off its CPU and a hog takes time from; strangers chose every name."""
    path = tmp_path_factory.mktemp("names") / "a.db"
    with ScriptedRun(path, seconds=END_S, not_traced={"NCCL": NAME}) as run:
        place = {"cgroup_id": 50, "kernel_cgroup_id": 50, "node": "demo"}
        run.append(tables.CGROUPS, **place, cgroup_path=f"/user.slice/{NAME}", unit=f"{NAME}.service")
        actor = run.process(100, NAME, cgroup_id=50, cmdline=NAME)
        line = run.stack([(f"/srv/{NAME}.py", 31, NAME), (f"/srv/{NAME}/train.py", 90, "main")])
        run.train(actor, 0, 8, Step())
        run.train(actor, 8, END_S, Step(return_delay_ms=6, sync={"sleep": 5, "runq": 6}))
        for second in range(8, END_S):
            run.culprit(actor, 900, NAME, second, 380, switches=400, cgroup_id=50)
            run.call(actor, "cudaStreamSynchronize", second + 0.5, 9.0, stack_hash=line)
        run.sample(actor, 12, [(f"/srv/{NAME}.py", 31, NAME)], state="sleep", ms=40)
    return path


def acting(text: str) -> set[str]:
    """What a terminal or a page would obey instead of showing it."""
    return {char for char in text if not (char.isprintable() or char in "\n\u00a0")}


@pytest.mark.parametrize("arguments", TEXTS, ids=lambda words: "-".join(words)[:40].encode("ascii", "replace").decode())
def test_no_command_lets_a_name_act_on_the_terminal(
    hostile: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [str(hostile), str(hostile)] if arguments[0] == "compare" else ["--db", str(hostile)]
    code, out, err = run_ingero(monkeypatch, capsys, *arguments, *where)
    assert code in (0, 1, 2)
    assert out + err
    assert acting(out + err) == set()
    assert not [line for line in (out + err).splitlines() if line.startswith("FORGED")]
    assert "Traceback" not in err


@pytest.mark.parametrize("form", ["perfetto", "chrome", "pprof"])
def test_no_exported_file_holds_a_name_that_acts(
    hostile: Path, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out"
    assert run_ingero(monkeypatch, capsys, "export", "--format", form, "-o", str(file), "--db", str(hostile))[0] == 0
    content = file.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    if form == "chrome":
        content = json.dumps(json.loads(content), ensure_ascii=False).encode()
    assert b"FORGED" in content
    for part in ("\x1b[2J", "\x1b]0;", "\x9b31m", "\u202e", "\u200b", "\x7f<", "\r\n"):
        assert part.encode() not in content
    assert b"\\u001b" not in content  # as JSON's own escape


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("explain_incident", {}),
        ("get_causal_chains", {}),
        ("run_sql", {"query": "SELECT * FROM processes"}),
        ("run_sql", {"query": 'SELECT 1 AS "\x1b[2J\u202e"'}),
    ],
)
def test_no_answer_to_an_assistant_holds_a_name_that_acts(hostile: Path, tool: str, arguments: dict[str, str]) -> None:
    answer = call(server_of(hostile), tool, **arguments)
    said = json.dumps([answer.structured_content, *(part.model_dump(mode="json") for part in answer.content)])
    text = json.loads(said)
    assert acting(json.dumps(text, ensure_ascii=False).replace("\\n", "")) == set()
    assert "\\u001b" not in json.dumps(text, ensure_ascii=False)


def test_no_answer_of_the_dashboard_lets_a_name_act(hostile: Path) -> None:
    client = client_of(hostile)
    seen = 0
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        if "get" not in methods or "events" in path.rpartition("/")[2]:
            continue
        answer = client.get(path.replace("{number}", "1").replace("{process}", "1").replace("{hash}", "1"))
        if "json" not in answer.headers.get("content-type", ""):
            continue
        texts = json.dumps(answer.json(), ensure_ascii=False).replace("\\n", "")
        assert acting(texts) == set(), path
        assert "\\u00" not in texts, path
        seen += "FORGED" in texts
    assert seen
