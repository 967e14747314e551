"""What the host of the other tests cannot show: cgroup v2 alone, a clock set back, and the probes of its own kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ingero.attach.probes import ProbeMode
from ingero.demo.workloads import native
from ingero.demo.workloads.program import Program
from ingero.discover.kernel import read_kernel
from tests.integration.accounts import cgroups
from tests.integration.targets import Recorded, record, rows, simulation, wait_for_end, waiting
from tests.integration.test_counts import recorded_counts, true_counts
from tests.integration.tracing import tracing

HOUR_NS, SECOND_NS = 3_600 * 10**9, 10**9
SECONDS = 6
MOST_INCOMPLETE = 0.001
INCOMPLETE = """
SELECT o.name, duration_ns, residual_ns, switches, involuntary_switches, cpu, flags
FROM raw_events e JOIN ops o ON (o.source_id, o.op_id) = (e.source, e.op) WHERE source IN (1, 4) AND flags & 1
"""


def calls(seconds: float, rate: int) -> list[str]:
    return [
        str(native.build("calls")),
        "--threads",
        "2",
        "--processes",
        "1",
        "--seconds",
        str(seconds),
        "--rate",
        str(rate),
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A quiet machine, every call recorded."""
    return record(simulation(tmp_path_factory.mktemp("quiet")), calls(SECONDS, 1000), ["--record-all"])


def test_the_best_probes_of_this_kernel_are_used_and_named(recorded: Recorded) -> None:
    features = read_kernel().features
    best = ProbeMode.PERF_EVENT
    if "uprobe_multi" in features:
        best = ProbeMode.MULTI
    if "uprobe_session" in features:
        best = ProbeMode.SESSION
    print(f"\nprobes: {recorded.tracer.messages[0]['mode']}")
    assert recorded.tracer.messages[0]["mode"] == best.value


def test_a_recording_counts_every_call(recorded: Recorded) -> None:
    outer, nested, _ = recorded_counts(recorded.database)
    true_outer, true_nested, _ = true_counts(recorded.truth)
    print(f"\n{outer.total()} outermost and {nested.total()} nested calls")
    assert +outer == +true_outer
    assert +nested == +true_nested


def test_hardly_a_record_is_incomplete(recorded: Recorded) -> None:
    ((records, incomplete),) = rows(
        recorded.database, "SELECT count(*), total(flags & 1) FROM raw_events WHERE source IN (1, 4)"
    )
    print(f"\nincomplete: {incomplete:.0f} of {records} records ({incomplete / records:.5%}); {recorded.drops}")
    for each in rows(recorded.database, INCOMPLETE):
        text = "  {}: {} ns, residual {} ns, {} switches, {} of them involuntary, on CPU {}, flags {:#x}"
        print(text.format(*each))
    assert records > 1000
    assert incomplete <= MOST_INCOMPLETE * records


def test_calls_in_a_v2_group_carry_its_id(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with cgroups.group("cpu") as folder, waiting(simulated, calls(2, 500)) as process:
        cgroups.add(folder, process.pid)
        with tracing(tmp_path, pids=[process.pid]) as tracer:
            process.go().finish()
            wait_for_end(tracer)
        found = rows(tracer.database, "SELECT DISTINCT cgroup_id FROM events WHERE source IN (1, 4)")
        assert found == [(folder.stat().st_ino,)]


QUOTA_SECONDS = """
SELECT c.throttled_ns, c.runq_ns + c.yielded_ns, total(q.ns), total(q.ns) FILTER (WHERE q.culprit_pid = -1)
FROM raw_thread_state_seconds c LEFT JOIN raw_culprits q USING (process, start_ns)
WHERE c.throttled_ns > 0 GROUP BY c.process, c.start_ns
"""


def test_under_a_quota_of_a_v2_group_culprits_are_right_or_unknown(tmp_path: Path) -> None:
    with (
        cgroups.group("cpu") as folder,
        waiting(simulation(tmp_path), calls(SECONDS, 100_000)) as process,
        Program([sys.executable, "-c", "while True: pass"]),
        tracing(tmp_path, pids=[process.pid]) as tracer,
    ):
        program = process.go()
        cgroups.set_quota(folder)
        cgroups.add(folder, process.pid)
        for _ in range(4):
            tracer.wait_for("second")
        cgroups.lift_quota(folder)
        program.finish()
        wait_for_end(tracer)
    seconds = rows(tracer.database, QUOTA_SECONDS)
    for second in seconds:
        print(
            "\nms throttled {:.0f}, waited {:.1f}, charged {:.1f}, unknown {:.1f}".format(*(ns / 1e6 for ns in second))
        )
    assert len(seconds) >= 2
    if "task_throttling" in read_kernel().features:
        assert not any(unknown_ns for *_, unknown_ns in seconds)
    else:
        assert all(charged_ns == unknown_ns == waited_ns for _, waited_ns, charged_ns, unknown_ns in seconds)


def test_a_clock_set_back_an_hour_does_not_turn_the_recording_back(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with waiting(simulated, calls(16, 200)) as process, tracing(tmp_path, pids=[process.pid]) as tracer:
        program = process.go()
        tracer.wait_for("second")
        _shift_clock("1 hour ago")
        try:
            program.finish()  # goes on beyond the next pair of clock readings, ten seconds later
            wait_for_end(tracer)
        finally:
            _shift_clock("1 hour")
    ((first, last, length),) = rows(
        tracer.database,
        "SELECT min(start_ns), max(start_ns), max(start_ns) - min(start_ns) FROM raw_events WHERE source IN (1, 4)",
    )
    seconds = [start for (start,) in rows(tracer.database, "SELECT DISTINCT start_ns FROM raw_op_stats ORDER BY rowid")]
    pairs = rows(tracer.database, "SELECT mono_ns, unix_ns FROM raw_clock_pairs ORDER BY mono_ns")
    print(f"\ncalls within {length / 1e9:.3f} s; clock pairs differ by {[(b - a) / 1e9 for a, b in pairs]}")
    assert min(unix - mono for mono, unix in pairs) < max(unix - mono for mono, unix in pairs) - HOUR_NS // 2
    assert length < 60 * SECOND_NS
    assert seconds == sorted(seconds)
    assert first - 2 * SECOND_NS <= seconds[0] <= seconds[-1] <= last + 2 * SECOND_NS


def _shift_clock(by: str) -> None:
    subprocess.run(["date", "-s", f"now {by}"], check=True, stdout=subprocess.DEVNULL)
