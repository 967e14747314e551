"""`ingero explain` and `ingero compare`: the verdict first, exit codes for scripts, and JSON as the schema says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.cli.moments import TimeOptionError
from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.ops import HostOp
from ingero.store.writing import tables
from ingero.units import QuantityError
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "src/ingero/cli/explain.schema.json").read_text())
SECOND_NS = 1_000_000_000
HOGGED = Step(return_delay_ms=3, sync={"runq": 3, "sleep": 5})
CALLS = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}


def trainer(script: ScriptedRun) -> Actor:
    one = script.process(100, "python")
    worker = script.process(101, "pt_data_worker", parent=one)
    clocks = {f"{name}_ns": 0 for name in ("run", "throttled", "yielded", "sleep", "io", "uninterruptible", "stopped")}
    for actor, runq_ms in ((one, 1500), (worker, 20)):
        script.append(
            tables.THREAD_STATE_SECONDS,
            start_ns=script.at(1),
            process=actor.number,
            runq_ns=runq_ms * 10**6,
            switches=77,
            **clocks,
        )
    return one


def recording(path: Path, *, is_hogged: bool, seed: int = 1) -> Path:
    with ScriptedRun(path, seconds=LENGTH_S, seed=seed) as script:
        one = trainer(script)
        script.train(one, 0, QUIET_S, Step(), calls=CALLS)
        script.train(one, QUIET_S, LENGTH_S, HOGGED if is_hogged else Step(), calls=CALLS)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            if is_hogged:
                script.culprit(one, 900, "stress-ng", second, 300, switches=100)
    return path


@pytest.fixture
def hogged(tmp_path: Path) -> Path:
    return recording(tmp_path / "hogged.db", is_hogged=True)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return recording(tmp_path / "healthy.db", is_hogged=False, seed=2)


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["explain", "--db", str(path), *options])


def lines(path: Path, *options: str) -> list[str]:
    return run(path, *options).output.splitlines()


def found(path: Path, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(path, "--json", *options).output)
    return answer


def test_the_exit_code_says_whether_an_incident_was_found(hogged: Path, healthy: Path) -> None:
    assert (run(hogged).exit_code, run(healthy).exit_code) == (1, 0)


def test_the_verdict_stands_before_the_machine_and_the_breakdown(hogged: Path) -> None:
    shown = lines(hogged)
    headline = shown.index("1 incident found (1 HIGH)")
    assert headline < next(index for index, line in enumerate(shown) if "GPU 0: " in line and "sync intervals" in line)


def test_an_incident_shows_its_impact_its_culprit_and_its_fix(hogged: Path) -> None:
    shown = "\n".join(lines(hogged))
    assert re.search(r"Impact +1\.\d+ s lost, \d\d% of wall time.*; 100% of it explained", shown)
    assert re.search(r"Culprits +stress-ng \[900\]  1\.\d\d s, 600 context switches", shown)
    assert re.search(
        r"10\d syncs/s \(baseline 15\d, -3\d%\); sync interval p99 9\.5\d ms \(baseline 6\.\d+ ms, \+\d+%\)", shown
    )
    assert "sync return delay: runnable (waiting for a CPU)" in shown
    assert "  Fix " in shown


def test_the_timeline_is_empty_before_and_full_within(hogged: Path) -> None:
    incident = found(hogged)["incidents"][0]
    before = [one["lost_ratio"] for one in incident["timeline"] if one["end_ns"] <= incident["start_ns"]]
    within = [one["lost_ratio"] for one in incident["timeline"] if one["begin_ns"] > incident["start_ns"]]
    assert before
    assert max(before) < 0.03
    assert min(within) > 0.25


def test_json_is_as_the_schema_says(hogged: Path, healthy: Path) -> None:
    for path in (hogged, healthy):
        jsonschema.validate(found(path, "--per-process"), SCHEMA)


def test_a_healthy_recording_says_so_of_each_process(healthy: Path) -> None:
    shown = lines(healthy)
    assert "No incidents found." in shown
    assert any(line.startswith("python [100]: ") for line in shown)


def test_only_one_cause_is_shown_when_asked(hogged: Path) -> None:
    assert run(hogged, "--rule", "cpu-contention").exit_code == 1
    assert run(hogged, "--rule", "data-starvation").exit_code == 0


def test_an_unknown_cause_comes_with_those_there_are(hogged: Path) -> None:
    error = run(hogged, "--rule", "gremlins").exception
    assert "gremlins" in str(error)
    assert "cpu-contention" in getattr(error, "hint", "")


def test_incidents_of_another_process_are_left_out(hogged: Path) -> None:
    assert found(hogged, "--pid", "100")["incidents"]
    assert found(hogged, "--pid", "101")["incidents"] == []


def test_a_process_that_was_not_seen_is_no_empty_answer(hogged: Path) -> None:
    error = run(hogged, "--pid", "4").exception
    assert "no process 4 in this recording" in str(error)
    assert "100 (python)" in getattr(error, "hint", "")


def test_per_process_names_workers_stalls_and_cpu_users(hogged: Path) -> None:
    shown = "\n".join(lines(hogged, "--per-process"))
    assert "pt_data_worker [101], worker of 100" in shown
    assert re.search(r"involuntary off-CPU time 1\.50 s of 13\.0 s \(12%.*77 context switches", shown)
    assert "stress-ng [900]: CPU time used meanwhile 1.80 s, 600 context switches" in shown
    assert re.search(r"cudaLaunchKernel +[\d,]+ +\S+ µs +\S+ µs +\S+ µs", shown)


def test_io_waits_inside_the_calls_are_said_to_be_none_for_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "copied.db"
    with ScriptedRun(path, seconds=4) as script:
        script.train(trainer(script), 0, 4, Step(busy_ms=26, sync={"io": 20, "sleep": 5}), sync_op="cudaMemcpy")
    assert re.search(r"in I/O wait for 3\.\d+ s, which is no wait for the GPU", "\n".join(lines(path, "--per-process")))


def test_the_worst_stall_is_the_longest_wait_for_a_cpu_however_long_others_slept(tmp_path: Path) -> None:
    path = tmp_path / "stalls.db"
    with ScriptedRun(path, seconds=LENGTH_S) as script:
        one = trainer(script)
        script.train(one, 0, LENGTH_S, Step(), calls=CALLS)
        for nap in range(300):
            script.off_cpu(one, nap / 50, nap / 50 + 0.018, "sleep", waker="timer", woken_s=nap / 50 + 0.0179)
        script.off_cpu(one, 7.0, 7.004, "runq", culprit=(900, "stress-ng"), cpu=3)
    assert any(
        "worst stall 4.00 ms of python [100] on CPU 3, stress-ng [900] ran" in line
        for line in lines(path, "--per-process")
    )
    process, worker = found(path, "--per-process")["per_process"]
    assert (process["worst_stall"]["duration_ns"], process["worst_stall"]["cpu"]) == (4_000_000, 3)
    assert (process["is_worker"], worker["is_worker"], worker["worst_stall"]) == (False, True, None)


def test_cpu_users_are_in_the_json_with_what_they_took(hogged: Path) -> None:
    (cpu_user,) = found(hogged, "--per-process")["cpu_users"]
    assert cpu_user == {"pid": 900, "name": "stress-ng", "stolen_ns": 1_800_000_000, "switches": 600}


def stored(path: Path) -> Path:
    """A recording with an incident of the trainer that tracing found."""
    with ScriptedRun(path, seconds=LENGTH_S) as script:
        script.train(trainer(script), 0, LENGTH_S, Step())
        affected = json.dumps(
            [{"process": 1, "pid": 100, "name": "python", "lost_ns": 5, "rank": None, "container": ""}]
        )
        script.append(
            tables.INCIDENTS,
            incident=1,
            cause="cpu-contention",
            root="host",
            severity="HIGH",
            kind="incident",
            start_ns=script.at(2),
            end_ns=script.at(4),
            lost_ns=10**9,
            lost_ratio=0.5,
            summary="python [100] lost 1.00 s",
            affected=affected,
        )
    return path


def test_what_tracing_found_is_shown_as_json_by_cause_and_by_process_with_its_exit_code(tmp_path: Path) -> None:
    path = stored(tmp_path / "stored.db")
    answer = found(path, "--chains")
    jsonschema.validate(answer, SCHEMA)
    assert [one["headline"] for one in answer["incidents"]] == ["python [100] lost 1.00 s"]
    wanted = {("--rule", "cpu-contention"): 1, ("--rule", "gil"): 0, ("--pid", "100"): 1, ("--pid", "101"): 0}
    assert {options: run(path, "--chains", *options).exit_code for options in wanted} == wanted
    assert lines(path, "--chains", "--rule", "gil") == ["Nothing was found while this was recorded."]


def test_an_event_of_another_process_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "stopped.db"
    with ScriptedRun(path, seconds=LENGTH_S) as script:
        for pid in (100, 200):
            script.train(script.process(pid, "python"), 0, LENGTH_S, Step())
        script.host_event(HostOp.OOM_KILL, 5, actor=Actor(number=1, pid=100, name="python"), arg1=100)
    assert [run(path, "--pid", pid).exit_code for pid in ("100", "200")] == [1, 0]


def test_the_breakdown_is_short_where_there_is_a_verdict_and_whole_when_asked(hogged: Path) -> None:
    assert "Full breakdown: --per-process" in lines(hogged)
    assert "Full breakdown: --per-process" not in lines(hogged, "--per-process")


def test_what_was_not_traced_is_not_evaluated_and_said(tmp_path: Path) -> None:
    path = tmp_path / "blind.db"
    with ScriptedRun(path, seconds=LENGTH_S, not_traced={"culprits": "switched off"}) as script:
        script.train(trainer(script), 0, LENGTH_S, Step())
    assert any("cpu-contention" in line and "switched off" in line for line in lines(path))


def test_a_part_of_the_recording_can_be_asked_about(hogged: Path) -> None:
    begin, end = BEGIN_NS // SECOND_NS + 1, BEGIN_NS // SECOND_NS + 5
    window = found(hogged, "--from", str(begin), "--to", str(end))["window"]
    assert (window["begin_ns"], window["end_ns"]) == (begin * SECOND_NS, end * SECOND_NS)
    assert found(hogged, "--last", "3s")["window"]["duration_ns"] == 3 * SECOND_NS


def test_what_is_no_moment_comes_with_an_example(hogged: Path) -> None:
    assert isinstance(run(hogged, "--from", "yesterday").exception, TimeOptionError)
    assert isinstance(run(hogged, "--since", "soon").exception, QuantityError)


def test_moments_with_nothing_between_come_with_when_it_was_recorded(hogged: Path) -> None:
    error = run(hogged, "--to", "1000000000").exception
    assert isinstance(error, TimeOptionError)
    assert "the recording goes from" in error.hint


def compared(before: Path, after: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["compare", str(before), str(after), "--json"])
    return result.exit_code, json.loads(result.output)


def test_a_mended_recording_is_better_and_its_cause_is_gone(hogged: Path, healthy: Path) -> None:
    code, answer = compared(hogged, healthy)
    assert (code, answer["verdict"], answer["causes"][0]["verdict"]) == (0, "better", "only before")
    assert answer["change_ratio"] == pytest.approx(-0.17, abs=0.03)


def test_a_slower_recording_is_worse_by_its_exit_code(hogged: Path, healthy: Path) -> None:
    code, answer = compared(healthy, hogged)
    assert (code, answer["verdict"], answer["causes"][0]["verdict"]) == (1, "worse", "only after")


def test_two_recordings_of_the_same_do_not_differ_beyond_noise(tmp_path: Path, healthy: Path) -> None:
    code, answer = compared(healthy, recording(tmp_path / "again.db", is_hogged=False, seed=9))
    assert (code, answer["verdict"]) == (0, "no difference beyond noise")
    assert {one["verdict"] for one in answer["ops"]} == {"no difference beyond noise"}


def test_calls_and_classes_are_shown_side_by_side(hogged: Path, healthy: Path) -> None:
    shown = CliRunner().invoke(cli, ["compare", str(hogged), str(healthy)]).output
    assert shown.startswith("better: -1")
    assert re.search(r"cudaStreamSynchronize +[\d,]+ +[\d,]+ ", shown)


def folded(path: Path) -> Path:
    """Of an hour ago the size limit has left a minute's sums and what tracing found."""
    with ScriptedRun(path, seconds=LENGTH_S) as script:
        script.train(trainer(script), 0, LENGTH_S, Step())
        minute_ns = script.at(-3600) // (60 * SECOND_NS) * 60 * SECOND_NS
        script.append(tables.OP_STATS, start_ns=minute_ns, period_s=60, process=1, source=1, op=3, count=7, sum_ns=7)
        script.append(
            tables.INCIDENTS,
            incident=1,
            cause="gil",
            severity="HIGH",
            start_ns=script.at(-3590),
            end_ns=script.at(-3580),
            summary="python [100] lost 1.00 s",
        )
    return path


def test_what_tracing_found_is_told_when_everything_else_of_its_time_is_gone(tmp_path: Path) -> None:
    path = folded(tmp_path / "folded.db")
    before = str(BEGIN_NS - 60 * SECOND_NS)
    for options in ((), ("--to", before), ("--since", "2h")):
        result = run(path, "--chains", *options)
        assert result.exit_code == 1
        assert "python [100] lost 1.00 s" in result.output
    assert run(path, "--chains", "--since", "60s").exit_code == 0


def test_the_sums_by_the_minute_can_be_asked_for(tmp_path: Path) -> None:
    path = folded(tmp_path / "folded.db")
    begin, end = (str(BEGIN_NS + at_s * SECOND_NS) for at_s in (-3660, -3500))
    window = found(path, "--from", begin, "--to", end)["window"]
    assert window["begin_ns"] < BEGIN_NS - 3500 * SECOND_NS
    assert found(path)["window"]["begin_ns"] >= BEGIN_NS - SECOND_NS
