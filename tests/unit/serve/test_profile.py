"""What `explain` shows of an imported profile, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
from click.testing import CliRunner, Result

from ingero.cli.explain import command
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.serve.text.profile_lines import profile_lines
from tests.unit.profiled_recording import diagnosed, imported

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "src/ingero/cli/explain.schema.json").read_text())


def _training(path: Path, *, ranks: int = 1) -> Path:
    """Five steps of 20 ms with a GPU that waits 8 ms for data, on each rank."""
    with imported(path) as recording:
        for rank in range(ranks):
            program = recording.program(700 + rank, rank=rank, gpu=rank)
            for number in range(5):
                at = number * 20.0
                for place in range(10):  # a step of ten launches
                    program.launch(at + place * 0.01, runs=(at + place, at + place + 1), kernel="gemm")
                program.step(at, at + 20, how="both")
                program.range("step", f"ProfilerStep#{number}", at, at + 20)
                program.launch(at + 0.5, runs=(at + 10, at + 12))
                program.launch(at + 1, runs=(at + 2 + rank, at + 11), kernel="ncclDevKernel_AllReduce", stream=20)
                program.range("data_loading", "enumerate(DataLoader)", at + 12, at + 20)
            program.launch(100, runs=(100, 112))
    return path


def _explained(path: Path, *options: str) -> Result:
    return CliRunner().invoke(command, ["-d", str(path), *options])


def _has(lines: Sequence[str], *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in lines)


def test_the_verdict_says_steps_pace_and_measured_busy_time(tmp_path: Path) -> None:
    result = _explained(_training(tmp_path / "a.db"))
    assert result.exit_code == 1
    verdict = next(line for line in result.output.splitlines() if line.startswith("python [700] rank 0: "))
    assert "5 steps of 20.0 ms (by repetition: 10 launches each; the program's own marks agree)" in verdict
    assert "host-bound: GPU busy 60% of the steps (measured by the profiler)" in verdict
    assert "most GPU idle time: input data, 40%" in verdict


def test_steps_idle_time_and_kernels_are_shown_and_nothing_is_said_of_syncs(tmp_path: Path) -> None:
    lines = _explained(_training(tmp_path / "a.db")).output.splitlines()
    assert _has(lines, " 3 ", "20.0 ms", "60%", "40%")
    assert _has(lines, "40.0 ms", "40%", "input data")
    assert _has(lines, "72.0 ms", "gemm")
    assert _has(lines, "data loading 40% of wall time")
    assert sum("does not show why a thread did not run" in line for line in lines) == 1
    assert not _has(lines, "never synced")
    assert not _has(lines, "no step has an end")


def test_of_many_ranks_four_are_shown_in_full_and_who_came_last_to_each_collective(tmp_path: Path) -> None:
    found = diagnosed(_training(tmp_path / "a.db", ranks=6)).profiles
    assert found is not None
    lines = list(profile_lines(found))
    assert sum("measured by the profiler" in line for line in lines) == 4
    assert _has(lines, "and 2 processes more")
    assert _has(lines, "5 collectives that several ranks took part in")
    assert _has(lines, "  1  AllReduce", "rank 5", "5.00 ms")
    assert _has(lines, "last to come: rank 5 5, of 5")
    assert sum("measured by the profiler" in line for line in profile_lines(found, pid=704)) == 1


def test_the_json_fits_its_schema_and_holds_what_a_script_asks_for(tmp_path: Path) -> None:
    answer = json.loads(_explained(_training(tmp_path / "a.db", ranks=2), "--json").output)
    jsonschema.validate(answer, SCHEMA)
    first = answer["profiles"]["processes"][0]
    assert (first["step_count"], first["step_median_ns"], len(first["marked_steps"])) == (5, 20_000_000, 5)
    assert (first["paced_by"], round(first["typical"]["busy_ratio"], 4)) == ("host", 0.6)
    assert first["typical"]["idle"]["input_data"] == {"ns": 40_000_000, "ratio": 0.4}
    assert answer["profiles"]["last_ranks"] == [1, 1, 1, 1, 1]
    assert first["collective_wait_ns"] == 5_000_000


def test_a_live_recording_has_no_profiles(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        recording.program().call("cudaLaunchKernel", 1, 0.01)
    assert diagnosis_json(diagnosed(tmp_path / "a.db"))["profiles"] is None


def test_steps_and_activities_without_length_are_survived(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(1, runs=(1, 1))
        program.launch(1, runs=(1, 0.5))
        program.step(1, 1)
    found = diagnosed(tmp_path / "a.db").profiles
    assert found is not None
    assert _has(list(profile_lines(found)), "GPU busy 0.0%")
