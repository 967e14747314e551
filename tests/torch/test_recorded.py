"""Real PyTorch, recorded from its first call: what was launched, by which library, from which line and by what way."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from ingero.decode.native.names import shorten
from ingero.demo.gpusim.build import environment
from ingero.ops import Source
from ingero.store.call_stacks import StackBook
from ingero.store.reader import open_reader
from ingero.store.waiters import Waiters
from tests.integration.kernel_names.test_kernel_names import launches, readable
from tests.integration.targets import Recorded, Simulation, record, rows

_HERE = Path(__file__).parent
_HOME = Path(os.environ.get("INGERO_TORCH") or _HERE.parents[1] / "build" / "torch")
_PROGRAM = _HERE / "train.py"
_MIN_COMPLETE = 0.99
_MIN_WAITED = 0.9  # of the calls in passes that last longer than it takes the main thread to fall asleep
_STEADY_STEPS = 1000
_STACKS = (
    "SELECT e.op_name, e.comm, e.tid = e.pid, s.frames, s.note FROM events e JOIN stack_traces s "
    "ON s.hash = e.stack_hash WHERE e.source IN (1, 4)"
)


def _recorded(folder: Path, *options: str, steps: int = 30, pause_s: float = 0.0) -> Recorded:
    variables = environment(_HOME / "lib", trace=folder / "truth.%p", sched="block")
    simulated = Simulation(folder=folder, libraries=_HOME / "lib", environment={**os.environ, **variables})
    python = _HOME / "venv" / "bin" / "python"
    command = [python, "-W", "ignore", _PROGRAM, "--steps", steps, "--pause-s", pause_s]
    return record(simulated, command, ["--record-all", *options])


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """With Python frames."""
    return _recorded(tmp_path_factory.mktemp("merged"))


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Without: the stacks are native from the call to the first function of the thread."""
    return _recorded(tmp_path_factory.mktemp("native"), "--py-walker=userspace")


def test_launches_of_each_kernel_are_those_of_the_device(merged: Recorded) -> None:
    """Short names: of a kernel made with a lambda the stub's symbol and the registered name differ in the arguments."""
    counted = readable(
        rows(merged.database, "SELECT coalesce(kernel_name, ''), sum(count) FROM kernel_launches GROUP BY 1")
    )
    print(f"\n{counted.total()} launches of {len(counted)} kernels; without a name: {counted['']}")
    assert _short(counted) == _short(launches(merged.truth))


def test_each_launch_has_the_library_that_made_it(merged: Recorded) -> None:
    counted = dict(rows(merged.database, "SELECT library, sum(count) FROM kernel_launches GROUP BY 1"))
    print(f"\nlaunches by library: {counted}")
    assert set(counted) == {"libtorch_cuda.so", "libcublas.so.12", "libcublasLt.so.12"}


def test_every_call_of_the_main_thread_ends_in_a_line_of_the_program(merged: Recorded) -> None:
    text = _PROGRAM.read_text().splitlines()
    lines: Counter[tuple[str, str]] = Counter()
    for op, _, is_main, frames, _ in rows(merged.database, _STACKS):
        own = next((one for one in json.loads(frames) if one.get("py_file") == str(_PROGRAM)), None)
        if is_main:
            lines[op, text[own["py_line"] - 1].strip() if own else "none"] += 1
    print("", *(f"{count:6} {op} at {line}" for (op, line), count in lines.most_common()), sep="\n")
    assert not [one for one in lines if one[1] == "none"]


def test_calls_of_autograd_end_in_the_line_that_waits_for_them(merged: Recorded, tmp_path: Path) -> None:
    """Nearly all of them where a pass is long; in short ones the main thread is often runnable still, or again.

    The thread that pins batches is waited for, too: its frames are the data loader's.
    """
    text = _PROGRAM.read_text().splitlines()
    backward, load = (
        next(at for at, line in enumerate(text, 1) if call in line) for call in ("loss.backward()", "next(batches)")
    )
    found = {}
    for name, recorded in (("short", merged), ("long", _recorded(tmp_path, steps=6, pause_s=0.6))):
        waited, total = _waited(recorded)
        of_autograd = waited[str(_PROGRAM), backward]
        print(f"\n{of_autograd} of {total} calls of autograd end in the line that waits, {name} passes")
        assert set(waited) <= {(str(_PROGRAM), backward), (str(_PROGRAM), load)}
        found[name] = of_autograd / total
    assert found["long"] > _MIN_WAITED


def _waited(recorded: Recorded) -> tuple[Counter[tuple[str, int]], int]:
    """How many calls were waited for at which line, and how many autograd's thread made."""
    with open_reader(recorded.database) as reader:
        window = reader.window(None, 0)
        assert window
        process = next(one.process for one in reader.processes() if one.is_traced)
        times = reader.stack_times(window, process=process, sources=(Source.CUDA, Source.DRIVER))
        book = StackBook(reader)
        placed, _ = Waiters(reader, window, process=process).placed(times, book)
        waited = [(one.time.count, book.of(one.waiter.stack_hash)) for one in placed if one.waiter]
    ((total,),) = rows(recorded.database, "SELECT count(*) FROM events WHERE comm = 'pt_autograd_0'")
    lines: Counter[tuple[str, int]] = Counter()
    for count, one in waited:
        if one and one.own:
            lines[one.own.file, one.own.line] += count
    return lines, total


def test_of_a_steady_loop_each_native_chain_is_its_own(tmp_path: Path) -> None:
    """The first calls of a place are marked until the agent has answered; in the second half of the loop none is."""
    found = rows(
        _recorded(tmp_path, steps=_STEADY_STEPS).database,
        "SELECT s.note LIKE '%another call%' FROM events e JOIN stack_traces s ON s.hash = e.stack_hash "
        "WHERE e.source IN (1, 4) ORDER BY e.timestamp",
    )
    marked = [bool(one) for (one,) in found]
    print(f"\n{sum(marked)} of {len(marked)} calls are marked as maybe another call's")
    assert not any(marked[len(marked) // 2 :])


def test_native_chains_reach_the_first_function_of_their_thread(native: Recorded) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for _, comm, _, frames, note in rows(native.database, _STACKS):
        seen[comm, _ending(json.loads(frames), note)] += 1
    total, complete = seen.total(), sum(count for (_, ending), count in seen.items() if ending == "complete")
    print(f"\n{complete} of {total} ({complete / total:.2%}) complete: {dict(seen)}")
    assert complete >= _MIN_COMPLETE * total
    assert all(ending for _, ending in seen), "a chain that is not complete says why"


def _short(counted: Counter[str]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for name, count in counted.items():
        summed[shorten(name)] += count
    return summed


def _ending(frames: list[dict[str, str]], note: str) -> str:
    """Of the main thread _start; of another the C library's clone3(), which has no name in a stripped file."""
    if frames and (frames[-1]["symbol"] == "_start" or frames[-1]["file"] == "libc.so.6"):
        return "complete"
    return note.partition(";")[0] if "end early" in note or "lost" in note else ""
