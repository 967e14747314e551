"""ipc-bound: a trainer waits for another process; a server that waits for its next request does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.samples import process_roles
from ingero.diagnose.samples.stack_samples import MIN_SAMPLES
from ingero.events import ASKS_FILE_SYSTEM, LOCKS_FILE, RECEIVES, SENDS, WAITS_FOR_CHILD, WAITS_FOR_EVENTS
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

PARTNER = Actor(number=0, pid=700, name="featurizer")
SUBPROCESS = (
    ("/usr/lib/python3.12/selectors.py", 415, "select"),
    ("/usr/lib/python3.12/subprocess.py", 2115, "_communicate"),
    ("/srv/job/train.py", 51, "log_gpu_memory"),
)
QUEUE = (("/usr/lib/python3.12/multiprocessing/connection.py", 395, "_recv"), ("/srv/job/train.py", 60, "main"))
CALL = (("/usr/lib/python3.12/multiprocessing/managers.py", 820, "_callmethod"), ("/srv/job/train.py", 98, "main"))


def asking(run: ScriptedRun, trainer: Actor) -> None:
    """8 ms asleep in each step until a process outside the tree wakes it."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8}))
    for begin, _, _ in steps:
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=PARTNER)


def test_the_process_that_answers_late_is_named(tmp_path: Path) -> None:
    def training(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        run.off_cpu(worker, 0.1, 0.2, "sleep", waker="timer")
        asking(run, trainer)

    diagnosis = diagnosed(tmp_path, training)
    assert causes(diagnosis) == ["ipc-bound"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(700, "featurizer")]
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_client_is_known_by_its_frames(tmp_path: Path) -> None:
    def calling(run: ScriptedRun, trainer: Actor) -> None:
        asking(run, trainer)
        for tenth in range(10 * int(QUIET_S), 10 * int(LENGTH_S)):
            run.sample(trainer, tenth / 10 + 0.004, CALL, state="sleep", ms=100)

    diagnosis = diagnosed(tmp_path, calling)
    assert causes(diagnosis) == ["ipc-bound"]
    assert str(diagnosis.incidents[0].line) == "main() at /srv/job/train.py:98"


OPTIMIZER = (("/usr/lib/torch/optim/adam.py", 220, "step"), ("/srv/job/train.py", 71, "main"))
KERNEL = (("/usr/lib/ipykernel/kernelbase.py", 545, "process_one"), ("/srv/job/launch.py", 3, "main"))


def trained(run: ScriptedRun, trainer: Actor) -> None:
    """It was seen in an optimizer."""
    for tick in range(MIN_SAMPLES):
        run.sample(trainer, 1 + tick / 10, OPTIMIZER)


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ((("/srv/job/train.py", 34, "next_batch"),), ["ipc-bound"]),
        (KERNEL, []),  # a notebook whose next cell has not been asked for
    ],
)
def test_who_trains_waits_for_an_answer_except_in_an_event_loop(
    tmp_path: Path, meanwhile: tuple[tuple[str, int, str], ...], expected: list[str]
) -> None:
    def training(run: ScriptedRun, trainer: Actor) -> None:
        trained(run, trainer)
        asking(run, trainer)
        for tenth in range(10 * int(QUIET_S), 10 * int(LENGTH_S)):
            run.sample(trainer, tenth / 10 + 0.004, meanwhile, state="sleep", ms=100)

    assert causes(diagnosed(tmp_path, training)) == expected


def test_an_idle_notebook_is_woken_by_its_server_through_a_thread_without_frames(tmp_path: Path) -> None:
    """Its next cell comes through a thread of ZeroMQ, which waits for events."""

    def idle(run: ScriptedRun, trainer: Actor) -> None:
        trained(run, trainer)
        thread = Actor(number=trainer.number, pid=105, name="ZMQbg/IO/0")
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
            run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=thread, stack=KERNEL)
            run.off_cpu(trainer, begin, begin + 0.0079, "sleep", waker=PARTNER, tid=105, call=WAITS_FOR_EVENTS)

    assert causes(diagnosed(tmp_path, idle)) == []


def test_an_idle_notebook_whose_event_loop_has_a_timer_is_idle(tmp_path: Path) -> None:
    """It looks after its heartbeat one to three times until the next cell comes."""

    def idle(run: ScriptedRun, trainer: Actor) -> None:
        trained(run, trainer)
        for number, (begin, _, _) in enumerate(
            run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=24.5, idle={"sleep": 24}))
        ):
            for beat in range(number % 3 + 1):
                at_s, length_s = begin + beat * 0.024 / (number % 3 + 1), 0.0239 / (number % 3 + 1)
                run.off_cpu(trainer, at_s, at_s + length_s, "sleep", waker="timer", call=WAITS_FOR_EVENTS)

    assert causes(diagnosed(tmp_path, idle)) == []


@pytest.mark.parametrize(
    ("kernel", "is_training"),
    [
        ("vectorized_elementwise_kernel<...>", False),
        ("at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", True),
        ("cunn_SoftMaxBackward<...>", True),
        ("flash_bwd_dq_dk_dv_loop_kernel<...>", True),
        ("sm80_xmma_wgrad_implicit_gemm", True),
        ("sm80_xmma_dgrad_implicit_gemm", False),  # of a transposed convolution
        ("void lambda_kernel", False),
    ],
)
def test_kernels_of_backward_passes_and_optimizers_show_training(kernel: str, *, is_training: bool) -> None:
    assert bool(process_roles._TRAINING_KERNEL.search(kernel)) is is_training


def test_a_trainer_between_two_jobs_has_no_demand(tmp_path: Path) -> None:
    """It reads its next job from a queue elsewhere, once in a hundred steps."""

    def working(run: ScriptedRun, trainer: Actor) -> None:
        trained(run, trainer)
        line, now = (("/srv/job/worker.py", 12, "next_job"),), QUIET_S
        while now < LENGTH_S - 1:
            ((begin, _, now),) = run.train(trainer, now, now + 1e-6, Step(idle_ms=400.5, idle={"sleep": 400}))
            run.off_cpu(trainer, begin, begin + 0.4, "sleep", waker=PARTNER, stack=line, call=RECEIVES)
            now = run.train(trainer, now, now + 0.6, Step())[-1][2]

    assert causes(diagnosed(tmp_path, working)) == []


def test_an_event_loop_that_reads_elsewhere_waits_for_an_answer(tmp_path: Path) -> None:
    """It gets its requests as events, in the first half too."""

    def blocked(run: ScriptedRun, trainer: Actor) -> None:
        run.off_cpu(trainer, 0.1, 0.2, "sleep", waker=Actor(number=0, pid=701, name="client"), call=WAITS_FOR_EVENTS)
        writing(run, trainer, call=RECEIVES)

    diagnosis = diagnosed(tmp_path, blocked)
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "blocking its event loop until featurizer [700] answered, log() at /srv/job/train.py:77" in incident.summary


def unanswered(run: ScriptedRun, trainer: Actor, stack: tuple[tuple[str, int, str], ...]) -> None:
    """It trains; 8 ms of each step in a poll until its own timeout."""
    trained(run, trainer)
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker="timer", stack=stack, call=RECEIVES)


def test_a_timeout_is_no_sleep_of_the_programs_own(tmp_path: Path) -> None:
    line = (("/usr/lib/python3.12/http/client.py", 300, "_read_status"), ("/srv/job/train.py", 41, "push"))
    diagnosis = diagnosed(tmp_path, lambda run, trainer: unanswered(run, trainer, line))
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "an answer that did not come before its own timeout, push() at /srv/job/train.py:41" in incident.summary
    assert incident.culprits == ()
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_loader_that_looks_whether_its_workers_live_asks_nobody(tmp_path: Path) -> None:
    line = (("/usr/lib/multiprocessing/connection.py", 1136, "wait"), ("/srv/job/train.py", 41, "next_batch"))
    assert "ipc-bound" not in causes(diagnosed(tmp_path, lambda run, trainer: unanswered(run, trainer, line)))


def test_an_answer_over_the_network_has_no_pid(tmp_path: Path) -> None:
    def remote(run: ScriptedRun, trainer: Actor) -> None:
        trained(run, trainer)
        line = (("/srv/job/train.py", 34, "next_batch"),)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
            run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker="network", stack=line, call=RECEIVES)

    diagnosis = diagnosed(tmp_path, remote)
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "waiting for the answer of the other end of its connection, next_batch()" in incident.summary
    assert incident.culprits == ()
    assert f"pid={100}," in incident.fixes[0].command


@pytest.mark.parametrize(
    ("call", "cause", "text"),
    [
        (SENDS, "ipc-bound", "until featurizer [700] had taken it"),
        (LOCKS_FILE, "ipc-bound", "waiting for the lock of a file that featurizer [700] held"),
        (ASKS_FILE_SYSTEM, "network-filesystem-wait", "served by featurizer [700]"),
    ],
)
def test_what_it_asked_for_is_told_by_the_system_call(tmp_path: Path, call: int, cause: str, text: str) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: writing(run, trainer, call=call))
    assert causes(diagnosis) == [cause]
    assert text in diagnosis.incidents[0].summary


def test_a_process_that_may_be_a_server_has_no_demand(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, asking)) == []


def writing(run: ScriptedRun, trainer: Actor, *, call: int) -> None:
    """8 ms asleep in each step, until the reader of a pipe has made room, or somebody writes to the one it reads."""
    line = (("/srv/job/train.py", 77, "log"),)
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=PARTNER, stack=line, call=call)


def test_a_reader_that_takes_a_write_late_is_named_whoever_the_writer_is(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: writing(run, trainer, call=SENDS))
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "until featurizer [700] had taken it, log() at /srv/job/train.py:77" in incident.summary
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_read_at_the_same_line_may_be_the_next_request(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: writing(run, trainer, call=RECEIVES))) == []


def test_a_child_that_takes_records_late_makes_no_data(tmp_path: Path) -> None:
    def logging(run: ScriptedRun, trainer: Actor) -> None:
        child = run.process(300, "wandb-service", parent=trainer)
        line = (("/srv/job/train.py", 77, "log"),)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
            run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=child, stack=line, call=SENDS)
            run.off_cpu(child, begin - 0.001, begin + 0.0078, "sleep", waker="timer")

    diagnosis = diagnosed(tmp_path, logging)
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "until wandb-service [300] had taken it, log() at /srv/job/train.py:77" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(300, "wandb-service")]


def test_a_child_that_is_asked_elsewhere_than_in_a_queue_is_said_to_answer(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: running(run, trainer, (("/srv/job/env.py", 9, "step"),)))
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "waiting for the answer of nvidia-smi [300], step() at /srv/job/env.py:9" in incident.summary
    assert "nvidia-smi [300] spent 98% of that sleeping on a timer" in incident.summary


def running(run: ScriptedRun, trainer: Actor, stack: tuple[tuple[str, int, str], ...]) -> None:
    """8 ms asleep in each step, until a child that sleeps by itself has ended it."""
    child = run.process(300, "nvidia-smi", parent=trainer)
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=child, stack=stack)
        run.off_cpu(child, begin - 0.001, begin + 0.0078, "sleep", waker="timer")


def test_a_program_that_the_loop_runs_is_no_data_worker(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: running(run, trainer, SUBPROCESS))
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "waiting for nvidia-smi [300], a program that it ran, log_gpu_memory()" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(300, "nvidia-smi")]


def test_a_child_whose_items_the_loop_takes_is_one(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: running(run, trainer, QUEUE))
    assert causes(diagnosis) == ["data-starvation"]


SPINNING = (("/srv/vllm/shm_broadcast.py", 31, "acquire_read"), ("/srv/vllm/worker.py", 90, "busy_loop"))
LOOKING = (("/srv/vllm/shm_broadcast.py", 30, "acquire_read"), *SPINNING[1:])
DECODING = (("/srv/vllm/worker.py", 97, "decode"),)
SCHEDULING = (("/srv/vllm/core.py", 210, "update_from_output"),)


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_worker_that_spins_waits_for_its_parent_if_that_computes(tmp_path: Path, *, is_busy: bool) -> None:
    """30 ms of each step on a CPU, yielding it, as another worker; the parent computes, or sleeps as nobody asks."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        engine = run.process(90, "EngineCore")
        worker = run.process(100, "VllmWorker", parent=engine)
        other = run.process(101, "VllmWorker", parent=engine)
        run.off_cpu(engine, 0.1, 0.2, "sleep", waker="timer")
        run.train(worker, 0, QUIET_S, Step())
        for begin, _, _ in run.train(worker, QUIET_S, LENGTH_S, Step(idle_ms=31.0)):
            for at_s in (0.002, 0.012, 0.022, 0.03):
                run.sample(worker, begin + at_s, SPINNING, ms=8, native=("__sched_yield",))
                run.sample(other, begin + at_s, SPINNING, ms=8, native=("__sched_yield",))
            run.sample(worker, begin + 0.026, LOOKING, ms=4)
            run.sample(worker, begin + 0.0308, DECODING, ms=1)
            if is_busy:
                run.sample(engine, begin + 0.015, SCHEDULING, ms=30)
            else:
                run.off_cpu(engine, begin, begin + 0.0305, "sleep", waker="network")
    diagnosis = diagnosed_file(path)
    if not is_busy:
        assert causes(diagnosis) == []
        return
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "polling without a sleep for what EngineCore [90] gives it, acquire_read()" in incident.summary
    assert "EngineCore [90] was computing for 97% of the time before the first launch" in incident.summary
    assert "update_from_output() at /srv/vllm/core.py:210" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(90, "EngineCore")]


def test_a_program_run_from_c_code_is_known_by_the_wait_for_its_end(tmp_path: Path) -> None:
    """`os.system` has no frames of its own."""

    def running_c(run: ScriptedRun, trainer: Actor) -> None:
        line = (("/srv/job/train.py", 51, "log_gpu_memory"),)
        child = run.process(300, "sh", parent=trainer)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
            run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=child, stack=line, call=WAITS_FOR_CHILD)
            run.off_cpu(child, begin - 0.001, begin + 0.0078, "sleep", waker="timer")

    diagnosis = diagnosed(tmp_path, running_c)
    assert causes(diagnosis) == ["ipc-bound"]
    assert "waiting for sh [300], a program that it ran, log_gpu_memory()" in diagnosis.incidents[0].summary


@pytest.mark.parametrize("is_late", [True, False])
def test_who_ends_the_waits_of_several_ranks_may_pass_on_that_the_last_has_come(
    tmp_path: Path, *, is_late: bool
) -> None:
    """Rank 0 sleeps 8 ms a step until the store wakes it, right after the end of rank 1's GPU work or in mid-step."""
    path, store = tmp_path / "scene.db", Actor(number=0, pid=700, name="c10d-store")
    line = (("/srv/job/train.py", 60, "barrier"),)
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        first, second = run.process(100, "python", rank=0), run.process(101, "python", rank=1)
        trained(run, first)
        run.train(first, 0, QUIET_S, Step(noise=0))
        steps = run.train(first, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8}, noise=0))
        for begin, _, _ in steps:
            run.off_cpu(first, begin, begin + 0.008, "sleep", waker=store, stack=line, call=RECEIVES)
        run.train(second, 0, QUIET_S, Step(noise=0))
        length_s = steps[1][0] - steps[0][0]
        shift_s = 0.0079 if is_late else 0.003  # of the end of each of its steps
        run.train(second, QUIET_S, steps[0][0] + shift_s, Step(noise=0))
        run.train(second, steps[0][0] + shift_s, LENGTH_S, Step(idle_ms=length_s * 1e3 - 6.05, noise=0))
        run.off_cpu(second, 1.0, 1.0005, "sleep", waker=store, call=RECEIVES)
    found = {one.root: one for one in diagnosed_file(path).incidents if one.cause == "ipc-bound"}
    (incident,) = found.values()
    if is_late:
        assert "waiting until python [101], another rank, had come, barrier()" in incident.summary
        assert "c10d-store [700] passed that on" in incident.summary
        assert [one.pid for one in incident.culprits] == [101]
    else:
        assert "may only pass on that one of them is late" in incident.summary
        assert incident.culprits == ()


def held_up(run: ScriptedRun, trainer: Actor, waker: Actor, *, is_gpu_call: bool = False) -> None:
    """8 ms in uninterruptible sleep in each step, until another process has let it go on."""
    line = (("/srv/job/train.py", 33, "read"),)
    step = Step(idle_ms=8.5, idle={"uninterruptible": 8})
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step):
        run.off_cpu(trainer, begin, begin + 0.008, "uninterruptible", waker=waker, stack=line, is_gpu_call=is_gpu_call)


def test_whoever_holds_it_up_in_the_kernel_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: held_up(run, trainer, PARTNER))
    assert causes(diagnosis) == ["ipc-bound"]
    assert "in uninterruptible sleep until featurizer [700] let it go on, read()" in diagnosis.incidents[0].summary


@pytest.mark.parametrize(("name", "is_gpu_call"), [("featurizer", True), ("kcompactd0", False)])
def test_within_gpu_calls_or_by_the_kernel_itself_it_is_no_other_process(
    tmp_path: Path, name: str, *, is_gpu_call: bool
) -> None:
    waker = Actor(number=0, pid=700, name=name)
    diagnosis = diagnosed(tmp_path, lambda run, trainer: held_up(run, trainer, waker, is_gpu_call=is_gpu_call))
    assert "ipc-bound" not in causes(diagnosis)


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "ipc-bound" in {one.cause for one in diagnosis.not_evaluated}
