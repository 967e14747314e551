"""What GPU memory is live is what the workload holds: to the byte, by the site that allocated it, at its line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ingero.attach.groups import GROUP_OF_OP, op_set
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.probes import ProbeMode
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.session import session_facts
from ingero.demo.gpusim.knobs import Knobs
from ingero.diagnose.diagnosis import FAILED, diagnose
from ingero.events import CallFlag
from ingero.ops import MemoryKind
from ingero.serve.text.memory_lines import memory_lines
from ingero.store.call_stacks import StackBook
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.store.writing.writer import Writer
from tests.integration.allocations.programs import OF_PROCESS, SOURCE, Followed, all_followed, built, followed
from tests.integration.recording import left_behind
from tests.integration.targets import record, rows, simulation, wait_for_end, waiting
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

PAIRS_PER_THREAD = 15_000
LEAKS = 60


def traced_from_the_middle(folder: Path, command: Sequence[object]) -> tuple[dict[str, int], Path]:
    """Traces a program that says `held` and goes on when it reads a line: what it printed, and the recording."""
    with subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=simulation(folder).environment,
    ) as process:
        assert process.stderr
        assert process.stderr.readline().startswith("held")
        with tracing(folder, pids=[process.pid]) as tracer:
            said = json.loads(process.communicate("\n")[0])
            wait_for_end(tracer)
    return said, tracer.database


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Followed]:
    """What the workload does in one way or another, all of it in one recording."""
    wanted: dict[str, Sequence[object]] = {
        "churn": ["churn", PAIRS_PER_THREAD],
        "mistaken": ["mistaken", 300],
        "kinds": ["kinds"],
        "bad-frees": ["bad-frees"],
        "becomes": ["becomes", 5],
    }
    return all_followed(tmp_path_factory.mktemp("runs"), wanted)


def test_four_threads_at_20000_pairs_a_second_hold_what_is_said_to_the_byte(runs: dict[str, Followed]) -> None:
    found = runs["churn"]
    said = found.said
    columns = ("allocated_bytes", "freed_bytes", "allocations", "frees")
    assert [found.sums(column) for column in columns] == [
        said["allocated"], said["freed"], said["allocations"], said["frees"]
    ]  # fmt: skip
    held = said["allocated"] - said["freed"]
    assert found.held() == {"device": held}
    live, peak, unpaired = found.totals()["device"]
    assert (live, unpaired) == (held, 0)
    assert peak >= held
    assert found.sums("foreign_frees") == 0


def test_allocations_that_fail_at_the_memory_limit_hold_nothing_and_each_has_an_event(tmp_path: Path) -> None:
    with Knobs(simulation(tmp_path).knobs) as knobs:
        knobs.mem_limit_bytes = 6 << 20  # the threads want 8 MB together
    found = followed(tmp_path, "churn", PAIRS_PER_THREAD // 5)
    said = found.said
    assert said["failures"] > 100
    assert found.sums("failures") == said["failures"]
    assert found.sums("failed_bytes") == said["bytes_failed"]
    assert found.held() == {"device": said["allocated"] - said["freed"]}
    failed = found.rows(
        "SELECT count(*), sum(arg0), min(ret_code), max(ret_code), min(flags & ?) FROM events "
        "WHERE op_name = 'cudaMalloc' AND ret_code <> 0 AND pid = ?",
        int(CallFlag.FAILED),
    )
    assert failed == [(said["failures"], said["bytes_failed"], 2, 2, int(CallFlag.FAILED))]


def test_sizes_that_are_a_mistake_count_as_16_tib_each_and_their_records_as_what_they_are(
    runs: dict[str, Followed],
) -> None:
    found = runs["mistaken"]
    assert found.said["failures"] == 300
    assert (found.sums("failures"), found.sums("failed_bytes")) == (300, 300 << 44)
    assert found.rows(f"SELECT sum(bytes) FROM raw_op_stats {OF_PROCESS}") == [(300 << 44,)]
    sizes = "SELECT min(arg0), max(arg0) FROM events WHERE op_name = 'cudaMalloc' AND ret_code <> 0 AND pid = ?"
    assert found.rows(sizes) == [(1 << 62, 1 << 62)]
    with open_reader(found.database) as reader:
        window = Window(begin_ns=0, end_ns=time.time_ns())
        assert not [one for one in diagnose(reader, window).not_evaluated if one.reason.startswith(FAILED)]


def test_every_way_to_allocate_is_followed_to_its_own_free(runs: dict[str, Followed]) -> None:
    found = runs["kinds"]
    assert found.held() == found.said
    assert {kind: (live, unpaired) for kind, (live, _, unpaired) in found.totals().items()} == {
        kind: (held, 0) for kind, held in found.said.items()
    }


def test_a_free_that_fails_frees_nothing(runs: dict[str, Followed]) -> None:
    found = runs["bad-frees"]
    assert found.held() == found.said
    assert found.totals()["device"] == (1000, 3000, 0)
    assert found.sums("foreign_frees") == 0


def test_frees_of_what_was_allocated_before_tracing_are_counted_apart(tmp_path: Path) -> None:
    said, database = traced_from_the_middle(tmp_path, [built(tmp_path), "old"])
    sums = rows(database, "SELECT sum(foreign_frees), sum(freed_bytes) FROM raw_allocations")
    assert sums == [(said["foreign"], 0)]
    assert rows(database, "SELECT live_bytes FROM gpu_memory_seconds") == [(said["device"],)]


def test_another_program_holds_nothing_of_what_the_one_before_left(runs: dict[str, Followed]) -> None:
    found = runs["becomes"]
    assert found.held() == found.said
    assert found.totals()["device"] == (found.said["device"], found.said["device"], 0)


def test_what_a_library_allocates_inside_its_own_calls_counts_once(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    shutil.copy(simulated.libraries / "libnccl.so.2", tmp_path / "replaced.so")
    (simulated.libraries / "libnccl.so.2").unlink()
    library = ["gcc", "-O1", "-shared", "-fPIC", str(SOURCE.with_name("nccl.c")), "-o"]
    subprocess.run([*library, str(simulated.libraries / "libnccl.so.2")], check=True)
    found = followed(tmp_path, "nested")
    assert found.held() == {"device": found.said["device"]}
    by_caller = rows(
        found.database,
        "SELECT sum(allocations), sum(frees), sum(allocated_bytes) FROM gpu_memory GROUP BY op_name, caller",
    )
    assert sorted(by_caller) == [(1, 0, 1000), (1, 0, 1 << 20), (1, 1, 2 << 20)]
    assert found.totals()["device"][2] == 0


def test_a_leak_has_its_line_and_grows_by_what_that_line_took(tmp_path: Path) -> None:
    program = Path(__file__).with_name("leak.py")
    library = simulation(tmp_path).libraries / "libcudart.so.12"
    said, database = traced_from_the_middle(tmp_path, [sys.executable, program, library, LEAKS])
    line = next(n for n, text in enumerate(program.read_text().splitlines(), 1) if "c_size_t(BYTES)" in text)
    with open_reader(database) as reader:
        window = reader.window(None, 0)
        assert window is not None
        book = StackBook(reader)
        held: Counter[str] = Counter()
        for site in reader.memory_sites(window):
            stack = book.of(site.stack_hash)
            assert stack is not None
            held[stack.python[0].function] += site.growth_bytes
            assert site.begin_bytes + site.allocated_bytes - site.freed_bytes == site.end_bytes
        assert {name: grown for name, grown in held.items() if grown} == said
        (process,) = reader.processes()
        text = list(memory_lines(reader, window, process.process, StackBook(reader)))
    assert f"in {LEAKS} by cudaMalloc at leak.py:{line} in leaking" in text[1]


def test_a_full_table_is_counted_and_harms_nobody(tmp_path: Path) -> None:
    simulated, many, room = simulation(tmp_path), 3000, 1024
    with (
        waiting(simulated, [built(tmp_path), "many", many]) as process,
        KernelSide(KernelSizes(allocations=room)) as kernel,
        Writer(tmp_path / "recording.db", session=session_facts(()), node="node") as writer,
        Recorder(kernel, writer, RecorderOptions(pids=[process.pid])) as recorder,
    ):
        recorder.start()
        program = process.go()
        assert json.loads(program.finish()) == {"failed": 0}
        ended = time.monotonic()
        drops: Counter[str] = Counter()
        recorder.run(
            should_stop=lambda: time.monotonic() > ended + 1.3, on_second=lambda second: drops.update(second.drops)
        )
        left = left_behind(kernel)
        writer.flush()
    assert drops["allocations_full"] == many - room
    sums = "SELECT sum(allocations), sum(frees), sum(foreign_frees) FROM raw_allocations"
    assert rows(tmp_path / "recording.db", sums) == [(room, room, many - room)]
    totals = "SELECT live_bytes, peak_bytes, unpaired FROM raw_memory_seconds ORDER BY id DESC LIMIT 1"
    assert rows(tmp_path / "recording.db", totals) == [(0, 512 * room, many - room)]
    assert "allocations" not in left


def test_what_a_reset_device_held_is_not_told_as_exact(tmp_path: Path) -> None:
    program = (
        "import ctypes, sys; runtime = ctypes.CDLL(sys.argv[1]); print('held', file=sys.stderr, flush=True); "
        "sys.stdin.readline(); assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4096)) == 0; "
        "assert runtime.cudaDeviceReset() == 0"
    )
    simulated = simulation(tmp_path)
    recorded = record(simulated, [sys.executable, "-c", program, simulated.libraries / "libcudart.so.12"])
    totals = "SELECT live_bytes, unpaired FROM raw_memory_seconds ORDER BY id DESC LIMIT 1"
    assert rows(recorded.database, totals) == [(4096, 1)]


def test_an_ended_process_leaves_nothing_in_the_kernels_tables(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with (
        waiting(simulated, [built(tmp_path), "kinds"]) as process,
        KernelSide(KernelSizes()) as kernel,
        Writer(tmp_path / "recording.db", session=session_facts(()), node="node") as writer,
        Recorder(kernel, writer, RecorderOptions(pids=[process.pid])) as recorder,
    ):
        recorder.start()
        process.go().finish()
        ended = time.monotonic()
        recorder.run(should_stop=lambda: time.monotonic() > ended + 2.5, on_second=lambda _second: None)
        assert {"allocations", "allocation_sites", "memory_totals"} & left_behind(kernel).keys() == set()
        writer.flush()
    assert rows(tmp_path / "recording.db", "SELECT count(*) > 10 FROM raw_allocations") == [(1,)]


def test_while_allocations_are_only_counted_frees_go_on_to_count_and_the_level_is_said_to_be_not_exact(
    tmp_path: Path,
) -> None:
    simulated = simulation(tmp_path)
    with (
        subprocess.Popen(
            [built(tmp_path), "steps"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=simulated.environment,
        ) as process,
        KernelSide(KernelSizes()) as kernel,
        Writer(tmp_path / "recording.db", session=session_facts(()), node="node") as writer,
        Recorder(kernel, writer, RecorderOptions(pids=[process.pid])) as recorder,
    ):
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        recorder.start()
        for counted in (frozenset(), frozenset(GROUP_OF_OP), frozenset()):
            kernel.change_settings(counted_ops=op_set(counted))
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
        process.stdin.close()
        process.wait()
        ended = time.monotonic()
        recorder.run(should_stop=lambda: time.monotonic() > ended + 1.3, on_second=lambda _second: None)
        writer.flush()
    # step 1 takes 1000 and 2000 bytes; step 2, only counted, frees the 1000 and takes 4000; step 3 takes 8000
    totals = "SELECT live_bytes, unpaired FROM raw_memory_seconds ORDER BY id DESC LIMIT 1"
    assert rows(tmp_path / "recording.db", totals) == [(2000 + 8000, 2)]  # the runtime's call and the driver's
    assert rows(tmp_path / "recording.db", "SELECT sum(foreign_frees) FROM raw_allocations") == [(0,)]


def test_without_probes_at_returns_live_memory_is_said_to_be_not_traced(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with (
        waiting(simulated, [built(tmp_path), "kinds"]) as process,
        KernelSide(KernelSizes(), mode=ProbeMode.ENTRY_ONLY) as kernel,
        Writer(tmp_path / "recording.db", session=session_facts(()), node="node") as writer,
        Recorder(kernel, writer, RecorderOptions(pids=[process.pid])) as recorder,
    ):
        recorder.start()
        process.go().finish()
        ended = time.monotonic()
        recorder.run(should_stop=lambda: time.monotonic() > ended + 1.3, on_second=lambda _second: None)
        writer.flush()
    with open_reader(tmp_path / "recording.db") as reader:
        window = reader.window(None, 0)
        assert window is not None
        (process_row,) = reader.processes()
        assert reader.memory_sites(window) == []
        (level,) = reader.memory_seconds(window)
        assert (level["memory_kind"], level["peak_bytes"], level["unpaired"]) == (MemoryKind.DEVICE, 0, 1)
        text = list(memory_lines(reader, window, process_row.process, StackBook(reader)))
    assert text == ["  GPU memory: not traced, allocations were not followed from their return to their free"]
