"""Steps of real PyTorch loops that do not wait for the GPU once a step, against the loops' own marks."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bench.incidents.step_score import StepScore, score
from ingero.demo.gpusim.build import environment
from ingero.demo.gpusim.knobs import Knobs
from ingero.demo.workloads import steps as marks
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.store.call_stacks import StackBook
from ingero.store.reader import open_reader
from tests.integration.targets import Recorded, Simulation, record, rows

_HERE = Path(__file__).parent
_HOME = Path(os.environ.get("INGERO_TORCH") or _HERE.parents[1] / "build" / "torch")
_PROGRAM = _HERE / "loops.py"
_CLOCK_ERROR_NS = 1_000  # between the wall clock's rate before and after a pair of readings
_PRIORITY = 1  # of real-time threads, the least
_MEDIAN_MS, _P95_MS = 0.5, 3.0
_SOON_S = 8.0  # until steps are found: launches that tune kernels may fill a window in vain, which is 4 s of pause
_FAST_GPU = 0.3  # times the usual durations of kernels: it waits for the host, at any speed of that
_SLOW_AFTER = 0.5  # of the loop's time
_COPIES = (
    "SELECT host_memory, count(*) FROM cuda_events WHERE op = 'cudaMemcpyAsync' AND bytes > 65536 AND timestamp >= ? "
    "GROUP BY 1"
)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One way to run loops.py. kernel_scale: of the simulated GPU. pace: what `explain` must say."""

    options: tuple[str, ...] = ()
    kernel_scale: float = _FAST_GPU
    pace: str = "host-bound"
    variables: tuple[tuple[str, str], ...] = ()


LOOPS = {
    "plain": Loop(),
    "plain, slower GPU": Loop(kernel_scale=12.0, pace="GPU-bound"),
    "torch.compile": Loop(options=("--loop=compiled",)),
    "torch.compile, Triton's launcher": Loop(
        options=("--loop=compiled",), variables=(("TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER", "0"),)
    ),
    "pinned batches": Loop(options=("--loop=pinned",)),
    "pinned batches, loss read every tenth step": Loop(
        options=("--loop=pinned", "--log-every=10"),
        pace="GPU busy",  # by its syncs, which are many
    ),
    "pageable batches": Loop(options=("--loop=pageable",), pace="GPU busy"),  # each copy waits for its stream
    "slower after a while": Loop(options=("--seconds=20", f"--slow-after={_SLOW_AFTER}")),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recording of a loop, and its own marks."""

    recorded: Recorded
    log: Path
    score: StepScore
    found: np.ndarray[tuple[int, int], np.dtype[np.int64]]  # (start, end) of each step, CLOCK_MONOTONIC
    to_mono_ns: int  # from times of the recording

    @property
    def database(self) -> Path:
        """The recording."""
        return self.recorded.database

    def diagnosis(self) -> Diagnosis:
        """What `explain` says of it."""
        with open_reader(self.database) as reader:
            window = reader.window(None, time.time_ns())
            assert window is not None
            return diagnose(reader, window)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Each loop is recorded once."""
    compiled = tmp_path_factory.mktemp("compiled")
    done: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in done:
            done[name] = _run(LOOPS[name], tmp_path_factory.mktemp("loop"), compiled)
            _tell(name, done[name])
        return done[name]

    return run


def _run(loop: Loop, folder: Path, compiled: Path) -> Run:
    knobs, log = folder / "knobs", folder / "steps"
    with Knobs(knobs) as one:
        one.kernel_scale = loop.kernel_scale
    variables = environment(_HOME / "lib", ctl=knobs, trace=folder / "truth.%p", sched="block")
    variables |= {"TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"), "TRITON_CACHE_DIR": str(compiled / "triton")}
    variables |= dict(loop.variables)
    simulated = Simulation(folder=folder, libraries=_HOME / "lib", environment={**os.environ, **variables})
    python = _HOME / "venv" / "bin" / "python"
    command = ["/usr/bin/chrt", "--rr", _PRIORITY + 1, python, "-W", "ignore", _PROGRAM, "--out", log, *loop.options]
    with _ahead_of_others():
        recorded = record(simulated, command)
    ((to_mono_ns,),) = rows(recorded.database, "SELECT mono_ns - unix_ns FROM raw_clock_pairs LIMIT 1")
    found = np.array(rows(recorded.database, "SELECT start_ns, end_ns FROM steps ORDER BY start_ns"), np.int64)
    assert len(found), "no step was found"
    found += to_mono_ns
    return Run(recorded=recorded, log=log, score=score(found, marks.marks(log)), found=found, to_mono_ns=to_mono_ns)


@contextmanager
def _ahead_of_others() -> Iterator[None]:
    """Runs what is started inside before whatever else the machine does, the recorder behind the loop.

    A step that is held up differs from its marks by where in it that was, and a recorder without a CPU finds no step.
    """
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _tell(name: str, run: Run) -> None:
    one, how = run.score, dict(rows(run.database, "SELECT how, count(*) FROM steps GROUP BY 1 ORDER BY 2 DESC"))
    print(
        f"\n{name}: {one.true} steps, {one.found} found, {one.half} half, {one.double} double; error "
        f"{one.median_error_ms:.3f} ms at the median, {one.p95_error_ms:.2f} ms p95; {how}; "
        f"{'; '.join(verdict.text for verdict in run.diagnosis().verdicts)}"
    )


@pytest.mark.parametrize("name", LOOPS)
def test_each_step_is_one_of_the_loops_own(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    assert run.score.is_exact
    assert (np.abs(run.found[1:, 0] - run.found[:-1, 1]) < _CLOCK_ERROR_NS).all()  # without a gap


@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_as_long_as_the_loops_own(name: str, run_of: Callable[[str], Run]) -> None:
    one = run_of(name).score
    assert one.median_error_ms is not None
    assert one.p95_error_ms is not None
    assert one.median_error_ms < _MEDIAN_MS
    assert one.p95_error_ms < _P95_MS


@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_found_soon_after_the_first(name: str, run_of: Callable[[str], Run]) -> None:
    """However long it took to copy and compile the model."""
    run = run_of(name)
    first_ns = marks.read(run.log)[0].t_ns
    late_s = (int(run.found[0, 0]) - first_ns) / 1e9
    print(f"\n{name}: the first step begins {late_s:.2f} s after the loop's first ended")
    assert late_s < _SOON_S


@pytest.mark.parametrize("name", [name for name in LOOPS if not name.startswith("slower")])
def test_what_sets_the_pace_is_said(name: str, run_of: Callable[[str], Run]) -> None:
    (verdict,) = run_of(name).diagnosis().verdicts
    assert LOOPS[name].pace in verdict.text


@pytest.mark.parametrize(("name", "memory"), [("pinned batches", "pinned"), ("pageable batches", "pageable")])
def test_copies_of_batches_say_what_memory_they_read(name: str, memory: str, run_of: Callable[[str], Run]) -> None:
    """In single records; of all of them view `copies` sums how long those blocked that waited for the stream."""
    run = run_of(name)
    from_unix_ns = marks.read(run.log)[0].t_ns - run.to_mono_ns
    said = dict(rows(run.database, _COPIES, from_unix_ns))
    ((to_gpu, blocked_ns),) = rows(
        run.database,
        "SELECT sum(host_to_gpu_bytes), sum(blocked_ns) FROM copies "
        "WHERE op_name = 'cudaMemcpyAsync' AND timestamp > ?",
        from_unix_ns,  # rows of whole seconds: before it the model was copied
    )
    print(
        f"\n{name}: {said} of recorded copies, {to_gpu / 1e6:.0f} MB to the GPU, blocked for {blocked_ns / 1e6:.1f} ms"
    )
    assert set(said) == {memory}
    assert (blocked_ns > 0) is (memory == "pageable")


@pytest.mark.parametrize("name", ["plain", "torch.compile", "torch.compile, Triton's launcher"])
def test_every_launch_has_a_line_of_the_program_or_of_nobody(name: str, run_of: Callable[[str], Run]) -> None:
    """Of the main thread it is the user's; autograd's has frames of a compiled backward pass at most."""
    lines: Counter[tuple[bool, bool]] = Counter()
    run = run_of(name)
    with open_reader(run.database) as reader:
        book = StackBook(reader)
        stacks = rows(
            run.database,
            "SELECT tid = pid, stack_hash, count(*) FROM cuda_events WHERE op LIKE 'cu%LaunchKernel%' "
            "AND stack_hash IS NOT NULL GROUP BY 1, 2",
        )
        for is_main, stack_hash, count in stacks:
            stack = book.of(stack_hash)
            assert stack is not None
            is_own = not stack.is_a_librarys
            assert not is_own or (stack.own and stack.own.file == str(_PROGRAM))
            lines[bool(is_main), is_own] += count
    print(f"\n{name}: launches by (main thread, own line): {dict(lines)}")
    assert lines[True, True]
    assert not lines[True, False]


def test_the_line_of_slow_steps_is_the_users(run_of: Callable[[str], Run]) -> None:
    """Steps become slower by work in PyTorch's own Python code that a function of the user's calls."""
    text = _PROGRAM.read_text().splitlines()
    begin = next(at for at, line in enumerate(text, 1) if line.startswith("def smooth("))
    end = next(at for at, line in enumerate(text, 1) if at > begin and line.startswith("def "))
    incidents = run_of("slower after a while").diagnosis().incidents
    print("", *(f"{one.cause}: {one.line}" for one in incidents), sep="\n")
    found = [one.line for one in incidents if one.cause == "host-bound" and one.line]
    assert found
    assert all(line.file == str(_PROGRAM) and begin < line.line < end for line in found)


@pytest.mark.parametrize("name", LOOPS)
def test_no_incident_names_a_line_that_is_not_the_users(name: str, run_of: Callable[[str], Run]) -> None:
    """Except where a data worker is slow at what it does in none of the user's: it puts a batch together."""
    strange = [one for one in run_of(name).diagnosis().incidents if one.line and one.line.file != str(_PROGRAM)]
    assert not [one for one in strange if one.cause != "data-starvation" or "/torch/utils/data/" not in str(one.line)]


def test_only_rarely_is_a_step_waited_for(run_of: Callable[[str], Run]) -> None:
    """The loops are what they are meant to be."""
    for name in ("plain", "torch.compile", "pinned batches"):
        syncs = rows(run_of(name).database, "SELECT syncs FROM steps ORDER BY start_ns")
        waited = [at for at, (count,) in enumerate(syncs) if count]
        assert {later - earlier for earlier, later in itertools.pairwise(waited)} <= {100}
