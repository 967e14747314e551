"""`ingero export`: windows, processes, files, older recordings, and errors with a way out."""

from __future__ import annotations

import json
import lzma
import os
import pty
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.export import make_recording as make_large_recording
from ingero.cli.main import main
from ingero.serve.export import formats
from ingero.serve.export.flamegraph import Weight
from ingero.serve.export.formats import Format, export
from ingero.serve.export.rows import Rows
from ingero.store.reader import open_reader
from ingero.store.streaming.streams import Streams
from tests.trace_processor.processor import trace_processor
from tests.unit.export_recording import BEGIN_NS, MS, SECOND_NS, make_recording, rows

OLDER = Path(__file__).parents[2] / "data" / "ingero-0.x"
FORMATS = [one.value for one in Format]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("export") / "recording.db")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `ingero export ARGUMENTS`; returns exit code, standard output and standard error."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ingero", "export", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsysbinary.readouterr()
        return code, printed.out.decode(), printed.err.decode()

    return invoke


def calls(output: Path) -> list[dict[str, Any]]:
    """The CUDA calls of a JSON timeline."""
    return [event for event in json.loads(output.read_text())["traceEvents"] if event.get("cat") == "cuda"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_written_and_summed_up(run: Run, database: Path, tmp_path: Path, form: str) -> None:
    code, out, err = run("--format", form, "-o", tmp_path / "out", "--db", database)
    assert (code, err) == (0, "")
    assert "stacks" in out or "slices" in out
    assert (tmp_path / "out").stat().st_size > 100


def test_it_says_what_was_not_traced(run: Run, database: Path, tmp_path: Path) -> None:
    _, out, _ = run("--format", "chrome", "-o", tmp_path / "out", "-d", database)
    assert "not traced: TCP: switched off (tcp)" in out


def test_a_minus_writes_to_standard_output_and_the_summary_elsewhere(run: Run, database: Path) -> None:
    code, out, err = run("--format", "chrome", "-o", "-", "-d", database)
    assert code == 0
    assert len(json.loads(out)["traceEvents"]) > 20
    assert "slices" in err


def test_only_one_process(run: Run, database: Path, tmp_path: Path) -> None:
    run("--format", "chrome", "-o", tmp_path / "out", "-d", database, "--pid", 20)
    assert [event["dur"] for event in calls(tmp_path / "out")] == [3000]


def test_a_window_holds_what_begins_in_it_and_what_reaches_into_it(run: Run, database: Path, tmp_path: Path) -> None:
    begin, end = (f"{BEGIN_NS + at_ms * MS}" for at_ms in (70, 96))
    run("--format", "chrome", "-o", tmp_path / "out", "-d", database, "--from", begin, "--to", end)
    assert [event["dur"] for event in calls(tmp_path / "out")] == [20_000, 4000]


def test_since_counts_back_from_the_newest_moment(run: Run, database: Path, tmp_path: Path) -> None:
    code, _, err = run("--format", "pprof", "-o", tmp_path / "out", "-d", database, "--since", "1h")
    assert (code, err) == (0, "")


def test_an_empty_window_is_an_error_that_says_what_there_is(run: Run, database: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("kept")
    code, _, err = run(
        "--format", "perfetto", "-o", output, "-d", database, "--from", "2001-01-01", "--to", "2001-01-02"
    )
    assert code == 2
    assert "nothing was recorded from 2001-01-01" in err
    assert "the recording reaches from" in err
    assert output.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [output]


def test_a_window_without_calls_is_an_error_for_profiles(run: Run, database: Path, tmp_path: Path) -> None:
    begin = f"{BEGIN_NS + SECOND_NS // 2}"
    code, _, err = run("--format", "flamegraph", "-o", tmp_path / "out", "-d", database, "--from", begin)
    assert code == 2
    assert "no call was recorded" in err


def test_a_process_that_is_not_in_the_recording_is_an_error_that_names_those_that_are(
    run: Run, database: Path, tmp_path: Path
) -> None:
    code, _, err = run("--format", "perfetto", "-o", tmp_path / "out", "-d", database, "--pid", 4711)
    assert code == 2
    assert "10 (python3)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "yesterday-ish"], "is not a time"),
        (["--since", "5m", "--from", "13:40"], "exclude each other"),
        (["--from", "13:40:10", "--to", "13:40"], "no time lies between"),
    ],
)
def test_a_wrong_window_is_explained(
    run: Run, database: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    code, _, err = run("--format", "perfetto", "-o", tmp_path / "out", "-d", database, *options)
    assert code == 2
    assert message in err
    assert "hint: " in err


def test_a_weight_is_refused_where_it_would_mean_nothing(run: Run, database: Path, tmp_path: Path) -> None:
    code, _, err = run("--format", "pprof", "--weight", "calls", "-o", tmp_path / "out", "-d", database)
    assert code == 2
    assert "--weight is for --format flamegraph" in err


def test_a_full_disk_is_said_with_a_way_out(run: Run, database: Path) -> None:
    code, _, err = run("--format", "perfetto", "-o", "/dev/full", "-d", database)
    assert code == 2
    assert "the disk is full" in err
    assert "df -h" in err


@pytest.mark.parametrize(("name", "message"), [(".", "is a folder"), ("missing/out", "its folder does not exist")])
def test_a_place_that_cannot_be_written_is_an_error(
    run: Run, database: Path, tmp_path: Path, name: str, message: str
) -> None:
    code, _, err = run("--format", "perfetto", "-o", tmp_path / name, "-d", database)
    assert code == 2
    assert message in err


def test_a_file_that_exists_is_replaced_and_keeps_its_mode(run: Run, database: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("old")
    output.chmod(0o640)
    assert run("--format", "chrome", "-o", output, "-d", database)[0] == 0
    assert calls(output)
    assert output.stat().st_mode & 0o777 == 0o640


def test_progress_is_shown_on_a_terminal_only(database: Path, tmp_path: Path) -> None:
    main_side, terminal = pty.openpty()
    command = [sys.executable, "-m", "ingero.cli.main", "export", "--format", "chrome"]
    command += ["-o", str(tmp_path / "out"), "-d", str(database)]
    subprocess.run(command, stderr=terminal, stdout=subprocess.DEVNULL, check=True, env=os.environ | {"TERM": "xterm"})
    os.close(terminal)
    assert b"%" in os.read(main_side, 1 << 16)
    os.close(main_side)
    assert subprocess.run(command, capture_output=True, check=True).stderr == b""


def test_a_damaged_page_is_said_and_leaves_no_half_a_file(run: Run, tmp_path: Path) -> None:
    database = tmp_path / "damaged.db"
    make_large_recording(database, 5000)
    content = bytearray(database.read_bytes())
    content[len(content) // 3 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 3)
    database.write_bytes(content)
    (tmp_path / "here").mkdir()
    code, _, err = run("--format", "perfetto", "-o", tmp_path / "here" / "out", "-d", database)
    assert code == 2
    assert "is not a readable database" in err
    assert list((tmp_path / "here").iterdir()) == []


def peak_bytes(database: Path, out: Path, form: Format) -> int:
    """The most memory that Python objects took while it was exported."""
    with open_reader(database) as reader, out.open("wb") as file:
        window = reader.window(None, 0)
        assert window
        tracemalloc.start()
        export(Streams(reader, window), window, form, file, weight=Weight.TIME, progress=lambda _title, _share: None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.fixture(scope="module")
def ten_times(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Recordings of 1,000 and of 10,000 calls."""
    folder = tmp_path_factory.mktemp("ten_times")
    for calls in (1000, 10_000):
        make_large_recording(folder / f"{calls}.db", calls)
    return folder / "1000.db", folder / "10000.db"


@pytest.mark.parametrize("form", list(Format))
def test_memory_does_not_grow_with_the_recording(tmp_path: Path, ten_times: tuple[Path, Path], form: Format) -> None:
    # the lesser of two of the small one: its first export also fills what is made once
    # a thread that another test has left behind can only add, so the large one is asked again where it took more
    small, large = ten_times
    allowed = min(peak_bytes(small, tmp_path / "out", form) for _ in range(2)) + (1 << 20)  # its rows are 10 times that
    assert any(peak_bytes(large, tmp_path / "out", form) < allowed for _ in range(2))


@pytest.mark.parametrize("name", ["pytorch-dataloader-starvation", "sample-cluster"])
def test_a_recording_of_an_older_ingero_is_exported_and_what_it_lacks_is_said(
    run: Run, tmp_path: Path, name: str
) -> None:
    database = tmp_path / "older.db"
    database.write_bytes(lzma.decompress((OLDER / f"{name}.db.xz").read_bytes()))
    code, out, err = run("--format", "perfetto", "-o", tmp_path / "out", "-d", database)
    assert (code, err) == (0, "")
    assert "not recorded by Ingero 0." in out
    with trace_processor(tmp_path / "out") as processor:
        assert processor.errors() == {}
        found = processor.rows(
            "SELECT sum(category NOT IN ('causal_chain')) AS a, sum(category = 'causal_chain') AS b FROM slice"
        )
    assert found == rows(database, "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM causal_chains)")


def test_time_off_the_cpu_is_not_known_of_an_older_recording(run: Run, tmp_path: Path) -> None:
    database = tmp_path / "older.db"
    database.write_bytes(lzma.decompress((OLDER / "sample-cluster.db.xz").read_bytes()))
    code, _, err = run("--format", "flamegraph", "--weight", "offcpu", "-o", tmp_path / "out", "-d", database)
    assert code == 2
    assert "without thread-state time" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("can_nest", "spans", "rows_used"),
    [
        (True, [(0, 10), (2, 5), (5, 9), (10, 12)], [0, 0, 0, 0]),
        (True, [(0, 10), (5, 15), (16, 20)], [0, 1, 0]),
        (False, [(0, 10), (2, 5), (6, 8), (10, 12)], [0, 1, 1, 0]),
    ],
)
def test_overlapping_slices_go_to_further_rows(
    can_nest: bool, spans: list[tuple[int, int]], rows_used: list[int]
) -> None:
    found = Rows(can_nest=can_nest)
    assert [found.place(*span) for span in spans] == rows_used


@pytest.mark.parametrize("form", FORMATS)
def test_the_recording_is_not_written_over(run: Run, database: Path, form: str) -> None:
    before = database.read_bytes()
    code, _, told = run("--format", form, "-o", database, "--db", database)
    assert (code, "is the recording itself" in told) == (2, True)
    assert database.read_bytes() == before


@pytest.mark.parametrize("end", ["9999-12-31", "2300-01-01", "99999999999"])
def test_an_end_far_ahead_is_the_end_of_the_recording(run: Run, database: Path, tmp_path: Path, end: str) -> None:
    output = tmp_path / "t.json"
    code, _, errors = run("--format", "chrome", "-o", output, "-d", database, "--to", end)
    assert (code, errors) == (0, "")
    everything = tmp_path / "all.json"
    run("--format", "chrome", "-o", everything, "-d", database)
    assert calls(output) == calls(everything)


@pytest.mark.parametrize(
    "options",
    [["--from", "9999-12-31"], *([f"--from={year}-01-01", f"--to={year}-01-02"] for year in ("9999", "0002"))],
)
def test_a_window_far_away_is_explained(run: Run, database: Path, tmp_path: Path, options: list[str]) -> None:
    code, _, errors = run("--format", "chrome", "-o", tmp_path / "t.json", "-d", database, *options)
    assert code == 2
    assert "no time lies between" in errors


def test_a_begin_long_ago_is_the_begin_of_the_recording(run: Run, database: Path, tmp_path: Path) -> None:
    output, everything = tmp_path / "t.json", tmp_path / "all.json"
    assert run("--format", "chrome", "-o", output, "-d", database, "--from", "0002-01-01")[0] == 0
    run("--format", "chrome", "-o", everything, "-d", database)
    assert calls(output) == calls(everything)


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_that_outgrows_its_recording_ends_and_leaves_nothing(
    run: Run, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(formats, "_MIN_BYTES", 100)
    monkeypatch.setattr(formats, "_MAX_GROWTH", 0)
    code, _, error = run("--format", form, "-o", tmp_path / "out", "--db", database)
    assert code == 2
    assert "becomes larger than" in error
    assert list(tmp_path.iterdir()) == []
