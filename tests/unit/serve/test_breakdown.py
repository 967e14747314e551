"""The text of an account says where the time went, who took it, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.events import STATES, SyncIntervalFlag
from ingero.ops import BY_NAME, Source
from ingero.serve.text.breakdown import breakdown_text, header_lines
from ingero.store import histograms
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer
from ingero.units import SECOND_NS

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
SYNC = BY_NAME["cudaStreamSynchronize"]


def clocks(**spent: int) -> dict[str, int]:
    return {f"{clock}_ns": spent.get(clock, 0) for clock in STATES}


def record(writer: Writer) -> None:
    """A process that synced ten times: 2 ms empty, 5 ms busy, 3 ms late each; hogs ran while it was runnable."""
    session, process = writer.session, writer.process_id(100, START_NS)
    append = writer.append
    append(
        tables.PROCESSES,
        tables.PROCESSES.rows(1, process=process, session=session, pid=100, start_ns=START_NS, name="python"),
    )
    for index in range(10):
        a = START_NS + index * 10 * MS
        append(
            tables.SYNC_INTERVALS,
            tables.SYNC_INTERVALS.rows(
                1, session=session, process=process, pid=100, device=0, prev_sync_end_ns=a,
                first_launch_ns=a + 2 * MS, sync_start_ns=a + 3 * MS, gpu_done_ns=a + 7 * MS,
                gpu_done_low_ns=a + 7 * MS, gpu_done_high_ns=a + 7 * MS, sync_end_ns=a + 10 * MS,
                idle_ns=2 * MS, busy_ns=5 * MS, return_delay_ns=3 * MS, launches=20,
                **{f"idle_{name}": value for name, value in clocks(sleep=2 * MS).items()},
                **{f"launch_{name}": value for name, value in clocks(run=MS).items()},
                **{f"sync_{name}": value for name, value in clocks(sleep=4 * MS, runq=3 * MS).items()},
            ),
        )  # fmt: skip
    append(
        tables.OP_STATS,
        tables.OP_STATS.rows(
            1, session=session, start_ns=START_NS, process=process, source=int(Source.CUDA), op=SYNC.code, count=10,
            sum_ns=70 * MS, max_ns=9 * MS, **clocks(sleep=40 * MS, runq=30 * MS),
        ),
    )  # fmt: skip
    append(
        tables.CALL_SITES,
        tables.CALL_SITES.rows(
            1, session=session, start_ns=START_NS, process=process, source=int(Source.CUDA), op=SYNC.code, count=10,
            sum_ns=70 * MS, histogram=histograms.pack(histograms.count([7 * MS] * 10)),
        ),
    )  # fmt: skip
    append(
        tables.THREAD_STATE_SECONDS,
        tables.THREAD_STATE_SECONDS.rows(
            1,
            session=session,
            start_ns=START_NS,
            process=process,
            threads=1,
            **clocks(run=10 * MS, sleep=60 * MS, runq=30 * MS),
        ),
    )
    for pid, ns in ((201, 20 * MS), (202, 9 * MS)):
        append(
            tables.CULPRITS,
            tables.CULPRITS.rows(
                1, session=session, start_ns=START_NS, process=process, kind=2, culprit_pid=pid,
                culprit_name=writer.intern("hog"), ns=ns,
            ),
        )  # fmt: skip
    append(
        tables.EVENTS,
        tables.EVENTS.rows(
            1, session=session, start_ns=START_NS + MS, duration_ns=9 * MS, process=process, pid=100, tid=100,
            source=int(Source.CUDA), op=SYNC.code, comm=writer.intern("python"), culprit_pid=201,
            culprit_name=writer.intern("hog"), culprit_ns=4 * MS, waker_kind=3, **clocks(sleep=5 * MS, runq=4 * MS),
        ),
    )  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    path = tmp_path / "recording.db"
    with Writer(
        path, session=SessionFacts(uuid="u", started_ns=START_NS), node="node", clock=lambda: START_NS
    ) as writer:
        record(writer)
    with open_reader(path) as opened:
        yield opened


def text(reader: Reader, **options: int) -> str:
    window = reader.window(None, START_NS)
    assert window is not None
    return "\n".join(breakdown_text(reader, window, **options))


def line_with(words: str, lines: str) -> str:
    found = [line for line in lines.splitlines() if words in line]
    assert found, f"no line says {words!r} in:\n{lines}"
    return found[0]


def test_the_three_parts_of_the_wall_time_are_shown_with_their_shares(reader: Reader) -> None:
    lines = text(reader)
    assert "20.0 ms     20%" in line_with("GPU idle: nothing", lines)
    assert "50.0 ms     50%" in line_with("GPU busy", lines)
    assert "30.0 ms     30%" in line_with("sync return delay", lines)


def breakdown_of_run(path: Path, percent: int) -> str:
    """The account of a trainer with work queued 98% of the time, while NVML says that share."""
    with ScriptedRun(path, seconds=10) as run:
        trainer = run.process(100, "python", start_s=0)
        run.train(trainer, 0, 10, Step(idle_ms=0.1, busy_ms=9, launch_ms=1))
        for second in range(10):
            run.gpu(second + 0.5, percent=percent)
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        return "\n".join(breakdown_text(reader, window))


@pytest.mark.parametrize(
    ("percent", "rest"),
    [(60, " of the same seconds, in the rest the GPU was idle or copied"), (97, " of the same seconds")],
)
def test_beside_queued_work_stands_in_which_share_of_the_time_a_kernel_ran(
    percent: int, rest: str, tmp_path: Path
) -> None:
    lines = breakdown_of_run(tmp_path / "scene.db", percent).splitlines()
    at = next(index for index, line in enumerate(lines) if "GPU busy" in line)
    assert lines[at + 1].strip() == f"NVML: a kernel ran {percent}%{rest}"


def test_what_went_between_host_and_gpu_stands_apart_and_so_does_what_waited(tmp_path: Path) -> None:
    path, copy = tmp_path / "scene.db", BY_NAME["cudaMemcpyAsync"]
    with ScriptedRun(path, seconds=4) as run:
        trainer = run.process(100, "python")
        run.op(trainer, "cudaMemcpyAsync", 1, 30, 2.0, bytes=100 << 20)
        sums = {"host_to_gpu_bytes": 1 << 20, "gpu_to_host_bytes": 4 << 10, "blocked_ns": 60 * MS}
        place = {"process": trainer.number, "source": int(copy.source), "op": copy.code, "start_ns": run.at(1)}
        run.append(tables.COPIES, **sums, **place)
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        lines = "\n".join(breakdown_text(reader, window))
    assert "copied: 100 MiB, of it 1.00 MiB from host to GPU, 4.00 KiB from GPU to host" in lines
    assert "blocked in cudaMemcpyAsync (pageable): 60.0 ms" in lines


def test_what_the_thread_did_while_the_device_was_empty_is_shown(reader: Reader) -> None:
    lines = text(reader).splitlines()
    at = next(index for index, line in enumerate(lines) if "GPU idle: nothing" in line)
    assert lines[at + 1].split() == ["20.0", "ms", "sleeping"]


def test_cpu_users_of_one_name_are_summed_with_their_pids(reader: Reader) -> None:
    assert "hog [201, 202] 29.0 ms" in line_with("CPUs it waited for ran", text(reader))


def test_a_process_and_its_cpu_user_are_named_with_their_containers(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    with Writer(
        path, session=SessionFacts(uuid="u", started_ns=START_NS), node="node", clock=lambda: START_NS
    ) as writer:
        record(writer)
        session, process = writer.session, writer.process_id(100, START_NS)
        own = tables.PROCESSES.rows(
            1, process=process, session=session, pid=100, start_ns=START_NS, name="python", cgroup_id=5, rank=3,
            world_size=8,
        )  # fmt: skip
        groups = tables.CGROUPS.rows(
            2, cgroup_id=[5, 6], kernel_cgroup_id=[5, 6], node="node", container_id=["a" * 64, "b" * 64],
            pod=["train-3", "noisy-7"], namespace=["ml", ""],
        )  # fmt: skip
        cpu_user = tables.CULPRITS.rows(
            1, session=session, start_ns=START_NS, process=process, kind=2, culprit_pid=203, culprit_cgroup_id=6,
            culprit_name=writer.intern("stress"), ns=11 * MS,
        )  # fmt: skip
        for table, rows in ((tables.PROCESSES, own), (tables.CGROUPS, groups), (tables.CULPRITS, cpu_user)):
            writer.append(table, rows)
    with open_reader(path) as opened:
        lines = text(opened)
    assert "python [100], rank 3 of 8, container aaaaaaaaaaaa" in lines
    assert "  pod train-3 in namespace ml" in lines
    assert "stress in pod noisy-7 [203] 11.0 ms" in line_with("CPUs it waited for ran", lines)


def test_a_call_is_shown_with_its_percentiles_and_its_clocks(reader: Reader) -> None:
    line = line_with("cudaStreamSynchronize   ", text(reader))
    assert "70.0 ms" in line
    assert line.split()[-2] == "57%"


def test_the_longest_call_names_its_cpu_user_and_its_waker(reader: Reader) -> None:
    line = line_with("cudaStreamSynchronize 9.00 ms", text(reader))
    assert "4.00 ms runq + 5.00 ms sleep" in line
    assert "hog [201] ran instead 4.00 ms" in line
    assert "woken by timer" in line


def test_what_was_not_traced_is_said_because_silence_is_no_zero(tmp_path: Path) -> None:
    facts = SessionFacts(uuid="u", started_ns=START_NS, not_traced={"IO": "switched off (io)"})
    path = tmp_path / "recording.db"
    with Writer(path, session=facts, node="node", clock=lambda: START_NS) as writer:
        record(writer)
    with open_reader(path) as opened:
        assert "not traced: block I/O: switched off (io)" in text(opened)


def test_drops_are_shown_with_their_reason(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    with Writer(
        path, session=SessionFacts(uuid="u", started_ns=START_NS), node="node", clock=lambda: START_NS
    ) as writer:
        record(writer)
        row = tables.DROPS.rows(
            1, session=writer.session, start_ns=START_NS, counter="wakeup_missed", reason="wake-ups not seen", count=3
        )
        writer.append(tables.DROPS, row)
    with open_reader(path) as reader:
        assert line_with("wake-ups not seen", text(reader)).split()[0] == "3"


def test_no_drop_is_said_to_be_no_drop(reader: Reader) -> None:
    assert "No data was dropped while recording." in text(reader)


def test_only_the_process_asked_for_is_shown(reader: Reader) -> None:
    assert "python [100]" not in text(reader, pid=999)


def test_the_sum_of_the_parts_is_the_wall_time(reader: Reader) -> None:
    window = reader.window(None, START_NS)
    assert window is not None
    sync_intervals = reader.sync_intervals(window)
    assert np.array_equal(
        sync_intervals["idle_ns"] + sync_intervals["busy_ns"] + sync_intervals["return_delay_ns"],
        sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"],
    )


def test_what_the_size_limit_took_is_said_before_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    with Writer(
        path, session=SessionFacts(uuid="u", started_ns=START_NS), node="node", clock=lambda: START_NS
    ) as writer:
        record(writer)
        removed = {"noted_ns": START_NS, "max_db_bytes": 10 << 30}
        for name, kind, rows in (
            ("raw_events", "removed", 5),
            ("raw_op_stats", "folded", 7),
            ("raw_wakers", "removed", 0),
        ):
            row = tables.PRUNED.rows(1, name=name, kind=kind, until_ns=START_NS + 30 * MS, rows=rows, **removed)
            writer.append(tables.PRUNED, row)
    with open_reader(path) as opened:
        window = opened.window(None, START_NS)
        assert window is not None
        lines = "\n".join(header_lines(opened, window))
    assert "10.0 GiB" in line_with("--max-db", lines)
    assert "events before 20" in line_with("pruned, to stay below", lines)
    assert "op_stats before 20" in line_with("downsampled to minutes", lines)
    assert "wakers" not in lines


def test_a_program_without_syncs_is_accounted_by_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    step = RepeatedStep(host_ms=6.0, host={"runq": 2.0, "sleep": 1.0}, blocked={"launch": 3.0, "copy": 1.0}, noise=0)
    with ScriptedRun(path, seconds=10) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, 10, step)
        run.op(trainer, "cudaLaunchKernel", 0, 153_000, 0.01)
        run.op(trainer, "cudaLaunchKernel", 9.9, 1, 0.01)
    with open_reader(path) as reader:
        window = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 10 * SECOND_NS + 1)
        lines = "\n".join(breakdown_text(reader, window))
    assert "1,000 steps found by repetition, from one cudaMemcpyAsync to the next, in 10.0 s of wall time" in lines
    assert "6.00 s     60%  host time of the step" in lines
    assert "3.00 s  running" in lines
    assert "2.00 s  runnable (waiting for a CPU)" in lines
    assert "4.00 s     40%  blocked on the GPU" in lines
    assert "3.00 s  on a full launch queue" in lines
    assert "1.00 s  in asynchronous copies that waited" in lines
    assert "GPU idle time within steps is unknown" in lines
    assert "sync interval" not in lines


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (SyncIntervalFlag.UNTIMED, "launches of 1,000 of them had no durations"),
        (SyncIntervalFlag.UNTIMED | SyncIntervalFlag.LAUNCHES_UNSEEN, "launches of 1,000 of them were not traced"),
    ],
)
def test_what_steps_lack_is_said_with_the_reason(tmp_path: Path, flags: SyncIntervalFlag, told: str) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=10) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, 10, RepeatedStep(host_ms=10.0, noise=0, flags=int(flags)))
        run.op(trainer, "cudaMemcpyAsync", 0, 1000, 0.01)
    with open_reader(path) as reader:
        window = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 10 * SECOND_NS + 1)
        lines = "\n".join(breakdown_text(reader, window))
    assert f"{told}: time blocked on a full launch queue is unknown" in lines
