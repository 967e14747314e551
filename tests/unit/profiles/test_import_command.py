"""`ingero import`: writes a recording once, says what it holds and lacks, and every other command reads it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.import_profiles import measure, write_trace
from ingero.cli.main import main
from ingero.profiles.reading import HINT
from ingero.profiles.recording import NOT_SHOWN
from tests.unit.profiles import files
from tests.unit.profiles.files import call, database, new_trace, nsight_tables
from tests.unit.profiles.test_unpacking import tar_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `ingero ARGUMENTS`; returns exit code, standard output and standard error."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ingero", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsysbinary.readouterr()
        return code, printed.out.decode(), printed.err.decode()

    return invoke


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of some steps."""
    (tmp_path / "trace.json").write_bytes(new_trace())
    return tmp_path / "trace.json"


def test_it_says_what_it_made(run: Run, trace: Path, tmp_path: Path) -> None:
    code, out, err = run("import", trace, "-o", tmp_path / "run.db")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"1 process from 1 file (PyTorch profiler), 5.99 ms: {tmp_path}/run.db",
        "  calls 30, GPU activities 30, user ranges 36, steps 6, progress marks 5, stacks 1",
        "  left out, device synchronizations that the profiler made itself: 1",
        "  left out, operators inside other operators: 24",
        f"  {NOT_SHOWN}",
    ]


def test_it_says_what_was_dropped_and_what_the_file_lacks(run: Run, tmp_path: Path) -> None:
    data = new_trace([*files.training(), call("cudaMalloc", -1, 1, 1)])
    (tmp_path / "trace.json").write_bytes(data[:-30])
    code, out, _ = run("import", tmp_path / "trace.json", "-o", tmp_path / "run.db")
    assert code == 0
    assert "  dropped, records without a usable time: 1" in out.splitlines()
    assert "  trace.json is cut after 169 events: what came after them is not known" in out.splitlines()
    assert "  trace.json does not say when it was recorded: its times are counted from 2001-09-09" in out.splitlines()


def test_another_file_is_never_written_over(run: Run, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "thesis.txt"
    other.write_text("chapter one")
    for force in ((), ("--force",)):
        code, _, err = run("import", trace, "-o", other, *force)
        assert (code, other.read_text()) == (2, "chapter one")
        assert "exists and was not made by ingero import" in err


def test_an_import_of_before_is_written_over_by_force_only(run: Run, trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.db"
    assert run("import", trace, "-o", output)[0] == 0
    first = output.read_bytes()
    code, _, err = run("import", trace, "-o", output)
    assert (code, output.read_bytes() == first) == (2, True)
    assert "--force" in err
    assert run("import", trace, "-o", output, "--force")[0] == 0


def test_an_import_that_fails_leaves_the_one_of_before(run: Run, trace: Path, tmp_path: Path) -> None:
    output, bad = tmp_path / "run.db", tmp_path / "bad.json"
    assert run("import", trace, "-o", output)[0] == 0
    first = output.read_bytes()
    bad.write_text("{}")
    assert run("import", bad, "-o", output, "--force")[0] == 2
    assert output.read_bytes() == first


def test_a_file_that_holds_nothing_is_refused_and_nothing_is_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    code, _, err = run("import", tmp_path / "empty.json", "-o", tmp_path / "run.db")
    assert (code, (tmp_path / "run.db").exists()) == (2, False)
    assert err.splitlines() == [
        "error: empty.json holds no GPU call and no GPU activity",
        f"  hint: {HINT}",
    ]


def test_more_than_max_size_is_refused(run: Run, trace: Path, tmp_path: Path) -> None:
    code, _, err = run("import", trace, "-o", tmp_path / "run.db", "--max-size", "1k")
    assert (code, "more than 1.00 KiB" in err) == (2, True)


@pytest.mark.parametrize("form", ["perfetto", "chrome", "flamegraph", "pprof"])
def test_what_was_imported_can_be_exported(run: Run, trace: Path, tmp_path: Path, form: str) -> None:
    run("import", trace, "-o", tmp_path / "run.db")
    code, _, err = run("export", "--format", form, "-o", tmp_path / "out", "--db", tmp_path / "run.db")
    assert (code, err, (tmp_path / "out").stat().st_size > 0) == (0, "", True)


def test_explain_finds_nothing_and_says_once_what_a_profile_cannot_show(run: Run, tmp_path: Path) -> None:
    job = {f"rank{rank}.json": new_trace(files.busy_training(), distributedInfo={"rank": rank}) for rank in (0, 1)}
    (tmp_path / "job.tar.gz").write_bytes(tar_of(job))
    run("import", tmp_path / "job.tar.gz", "-o", tmp_path / "run.db")
    code, out, _ = run("explain", "--db", tmp_path / "run.db")
    assert code == 0
    assert out.count(NOT_SHOWN) == 1
    assert "python [4100], rank 1" in out


def test_explain_in_json_and_query_read_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(new_trace(files.busy_training()))
    run("import", tmp_path / "trace.json", "-o", tmp_path / "run.db")
    code, out, _ = run("explain", "--json", "--db", tmp_path / "run.db")
    assert (code, json.loads(out)["incidents"]) == (0, [])
    code, out, _ = run("query", "SELECT sum(count) FROM op_stats", "--csv", "--db", tmp_path / "run.db")
    assert (code, out.split()[-1]) == (0, "160")


def test_compare_reads_two_of_them(run: Run, tmp_path: Path) -> None:
    for name, steps in (("a", 20), ("b", 30)):
        source = database(tmp_path / f"{name}.sqlite", nsight_tables(steps=steps))
        assert run("import", source, "-o", tmp_path / f"{name}.db")[0] == 0
    code, _, err = run("compare", tmp_path / "a.db", tmp_path / "b.db")
    assert (code in (0, 1), err) == (True, "")


def test_the_bench_measures_an_import_that_adds_up(tmp_path: Path) -> None:
    steps = write_trace(tmp_path / "trace.json", 1)
    result = measure(tmp_path / "trace.json")
    assert (result.steps, result.calls) == (steps, 1000 * steps)


def test_a_file_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    code, _, err = run("import", tmp_path / "nowhere.json", "-o", tmp_path / "run.db")
    assert (code, err) == (2, f"error: cannot read {tmp_path}/nowhere.json: No such file or directory\n")


def test_a_short_profile_is_shown_in_its_own_length_to_the_millisecond(run: Run, trace: Path, tmp_path: Path) -> None:
    run("import", trace, "-o", tmp_path / "run.db")
    _, out, _ = run("explain", "--db", tmp_path / "run.db")
    first = out.splitlines()[0]
    assert re.fullmatch(r"5\.99 ms from 20\d\d-\d\d-\d\d \d\d:\d\d:36\.000", first)
    assert "1.00 s" not in out
