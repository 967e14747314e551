"""An account names the line of code that a call, a loss or a sync interval came from, and what is missing of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ingero.events import THREAD_STATES
from ingero.ops import BY_NAME, Source
from ingero.serve.text.breakdown import breakdown_text
from ingero.serve.text.stack_lines import where_text
from ingero.store.call_stacks import PythonPlace, call_stack
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts, Stack
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
SYNC, LAUNCH = BY_NAME["cudaStreamSynchronize"], BY_NAME["cudaLaunchKernel"]
TORCH = "/venv/lib/python3.11/site-packages/torch/tensor.py"
Frame = tuple[str, int, str]

NATIVE = {"ip": "0x7f01", "symbol": "aten_launch", "file": "libminiaten.so"}
ITEM, DRAIN = (TORCH, 71, "Tensor.item"), ("/srv/me/train.py", 73, "Trainer.drain")
CALL, STEP, MAIN = (TORCH, 9, "call"), ("/srv/me/train.py", 50, "step"), ("/srv/me/train.py", 5, "<module>")


def stack(python: Sequence[Frame], *, native: Sequence[dict[str, str]] = (NATIVE,), note: str = "") -> Stack:
    frames = [*native, *({"py_file": file, "py_line": line, "py_func": name} for file, line, name in python)]
    return Stack(hash=1, ips="[]", frames=json.dumps(frames), note=note)


def where(python: Sequence[Frame], **options: object) -> str:
    return where_text(call_stack(stack(python, **options)))  # type: ignore[arg-type]


def test_a_call_of_ones_own_code_is_named_by_its_line_alone() -> None:
    assert where([DRAIN, MAIN]) == "train.py:73 in Trainer.drain  issued by aten_launch (libminiaten.so)"


def test_a_call_inside_a_package_is_named_with_the_line_of_ones_own_that_led_to_it() -> None:
    assert where([ITEM, DRAIN], native=()) == "tensor.py:71 in Tensor.item < train.py:73 in Trainer.drain"
    assert where([ITEM, CALL, DRAIN], native=()) == "tensor.py:71 in Tensor.item < ... < train.py:73 in Trainer.drain"


def test_a_stack_of_packages_alone_is_named_by_its_innermost_line() -> None:
    assert where([ITEM, CALL], native=()) == "tensor.py:71 in Tensor.item"


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("/srv/me/train.py", True),
        ("/srv/me/lib/train.py", True),
        ("/srv/me/.venv/lib/python3.12/site-packages/torch/x.py", False),
        ("/usr/lib/python3/dist-packages/numpy/x.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/opt/conda/lib/python3.13t/queue.py", False),
        ("<frozen runpy>", False),
        ("<eval_with_key>.3", False),
        ("<stdin>", True),
        ("<string>", True),
        ("/tmp/torchinductor_me/bi/cbin2tbnufwegcjzthg4ulpsjw3o6qly4ti4a5pyb6rapparuz65.py", False),
        ("/srv/cache/bi/cache_of_my_own_model_with_a_rather_long_file_name_x.py", True),
    ],
)
def test_installed_packages_and_the_standard_library_are_not_ones_own_code(file: str, is_own: bool) -> None:
    assert PythonPlace(file, 1, "f").is_own is is_own


LAUNCHER: Frame = ("<string>", 5, "launcher")
TYPED: Frame = ("<string>", 1, "<module>")


def test_text_that_a_library_made_a_function_of_is_not_ones_own_code() -> None:
    assert where([LAUNCHER, ITEM, DRAIN], native=()) == "<string>:5 in launcher < ... < train.py:73 in Trainer.drain"


def test_a_program_that_is_text_is_ones_own_code() -> None:
    assert where([ITEM, TYPED], native=()) == "tensor.py:71 in Tensor.item < <string>:1 in <module>"


def test_what_is_missing_of_a_stack_is_said() -> None:
    text = where([], note="native frames end early: the copy of the stack ends here")
    assert text == (
        "no Python frame  issued by aten_launch (libminiaten.so)  "
        "(native frames end early: the copy of the stack ends here)"
    )


def test_a_place_without_a_symbol_names_its_file_once() -> None:
    native = [{"ip": "0x1", "symbol": "libffi.so.8+0x6f7a", "file": "libffi.so.8"}]
    assert where([DRAIN], native=native).endswith("issued by libffi.so.8+0x6f7a")


def test_the_runtime_is_not_named_as_the_issuer_of_the_driver_call_inside_it() -> None:
    native = [{"ip": "0x1", "symbol": "cudart_launch", "file": "libcudart.so.12"}, NATIVE]
    assert where([DRAIN], native=native).endswith("issued by aten_launch (libminiaten.so)")


def event(writer: Writer, at_ms: int, ms: int, op: object, stack_hash: int) -> None:
    code = getattr(op, "code")  # noqa: B009
    process = writer.process_id(100, START_NS)
    row = tables.EVENTS.rows(
        1, session=writer.session, start_ns=START_NS + at_ms * MS, duration_ns=ms * MS, process=process, pid=100,
        tid=100, source=int(Source.CUDA), op=code, stack_hash=stack_hash, comm=writer.intern("python"),
    )  # fmt: skip
    writer.append(tables.EVENTS, row)


def record(writer: Writer) -> None:
    """Three sync intervals of 10 ms, of which 4 ms empty and 1 ms late; the launches are only sampled."""
    session, process = writer.session, writer.process_id(100, START_NS)
    writer.append(
        tables.PROCESSES,
        tables.PROCESSES.rows(1, process=process, session=session, pid=100, start_ns=START_NS, name="python"),
    )
    for number, frames in ((11, [ITEM, DRAIN, MAIN]), (12, [CALL, STEP, MAIN])):
        stored = stack(frames)
        row = tables.STACKS.rows(1, hash=number, ips="[]", frames=stored.frames, note="")
        writer.append(tables.STACKS, row)
    for index in range(1, 4):
        a = START_NS + index * 10 * MS
        row = tables.SYNC_INTERVALS.rows(
            1, session=session, process=process, pid=100, device=0, prev_sync_end_ns=a,
            first_launch_ns=a + 4 * MS, sync_start_ns=a + 5 * MS, gpu_done_ns=a + 9 * MS,
            gpu_done_low_ns=a + 9 * MS, gpu_done_high_ns=a + 9 * MS, sync_end_ns=a + 10 * MS,
            idle_ns=4 * MS, busy_ns=5 * MS, return_delay_ns=MS, launches=20,
        )  # fmt: skip
        writer.append(tables.SYNC_INTERVALS, row)
    for end_ms in (20, 30, 40):
        event(writer, end_ms - 5, 5, SYNC, 11)
    event(writer, 14, 2, LAUNCH, 12)
    event(writer, 24, 1, LAUNCH, 0)
    for op, count, ms in ((SYNC, 3, 15), (LAUNCH, 60, 30)):
        row = tables.OP_STATS.rows(
            1, session=session, start_ns=START_NS, process=process, source=int(Source.CUDA), op=op.code, count=count,
            sum_ns=ms * MS, max_ns=5 * MS,
        )  # fmt: skip
        writer.append(tables.OP_STATS, row)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    path = tmp_path / "recording.db"
    facts = SessionFacts(uuid="u", started_ns=START_NS)
    with Writer(path, session=facts, node="node", clock=lambda: START_NS) as writer:
        record(writer)
    with open_reader(path) as opened:
        yield opened


def lines_of(reader: Reader, *, whole_stacks: bool = False) -> list[str]:
    window = reader.window(None, START_NS)
    assert window is not None
    return list(breakdown_text(reader, window, whole_stacks=whole_stacks))


def after(lines: list[str], words: str, count: int) -> list[str]:
    at = next(index for index, line in enumerate(lines) if words in line)
    return lines[at + 1 : at + 1 + count]


def test_what_each_line_cost_is_shown_with_how_much_of_it_is_recorded(reader: Reader) -> None:
    lines = lines_of(reader)
    assert "  lines of code, from recorded calls only: 18.0 ms of 45.0 ms, 5 of 63 calls:" in lines
    assert after(lines, "lines of code, from recorded calls only", 3) == [
        "    cudaStreamSynchronize 15.0 ms at train.py:73 in Trainer.drain (3 of 3 calls recorded)",
        "    cudaLaunchKernel 2.00 ms at train.py:50 in step (1 of 60 calls recorded)",
        "    cudaLaunchKernel 1.00 ms (line not known: no stack was stored; 1 of 60 calls recorded)",
    ]


def test_the_longest_calls_end_in_their_line(reader: Reader) -> None:
    shown = after(lines_of(reader), "longest recorded calls", 2)
    assert "cudaStreamSynchronize 5.00 ms" in shown[0]
    assert shown[1] == (
        "      at tensor.py:71 in Tensor.item < train.py:73 in Trainer.drain  issued by aten_launch (libminiaten.so)"
    )


def test_whole_stacks_are_shown_when_asked_for(reader: Reader) -> None:
    shown = after(lines_of(reader, whole_stacks=True), "longest recorded calls", 5)
    assert [line.strip() for line in shown[1:]] == [
        "[Native] aten_launch (libminiaten.so)",
        f"[Python] {TORCH}:71 in Tensor.item()",
        "[Python] /srv/me/train.py:73 in Trainer.drain()",
        "[Python] /srv/me/train.py:5 in <module>()",
    ]


def test_an_empty_device_and_a_late_pick_up_end_in_the_line_that_drained(reader: Reader) -> None:
    where = "at tensor.py:71 in Tensor.item < train.py:73 in Trainer.drain  issued by aten_launch (libminiaten.so)"
    lines = lines_of(reader)
    # the drain before the first sync interval has no record: its empty time is not charged to a line
    assert f"      {'8.00 ms':>10}  after the sync {where}  [2 of 3 sync intervals]" in lines
    assert f"      {'3.00 ms':>10}  in the sync {where}  [3 of 3 sync intervals]" in lines


def test_a_call_that_is_still_open_shows_its_whole_stack(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    facts = SessionFacts(uuid="u", started_ns=START_NS)
    with Writer(path, session=facts, node="node", clock=lambda: START_NS) as writer:
        record(writer)
        for seconds, stack_hash in ((2, 0), (3, 11)):  # the stack is known from the second look on
            row = tables.IN_FLIGHT.rows(
                1, session=writer.session, time_ns=START_NS + 30 * MS + seconds, process=1, pid=100, tid=100,
                source=int(Source.CUDA), op=SYNC.code, since_ns=START_NS, stack_hash=stack_hash,
            )  # fmt: skip
            writer.append(tables.IN_FLIGHT, row)
    with open_reader(path) as opened:
        lines = lines_of(opened)
    assert "  [Python] /srv/me/train.py:73 in Trainer.drain()" in after(lines, "Open for", 3)


def test_with_whole_stacks_the_other_threads_of_a_hung_process_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    facts = SessionFacts(uuid="u", started_ns=START_NS)
    with Writer(path, session=facts, node="node", clock=lambda: START_NS) as writer:
        record(writer)
        row = tables.IN_FLIGHT.rows(
            1, session=writer.session, time_ns=START_NS + 30 * MS, process=1, pid=100, tid=100,
            source=int(Source.CUDA), op=SYNC.code, since_ns=START_NS + MS, stack_hash=0,
        )  # fmt: skip
        writer.append(tables.IN_FLIGHT, row)
        sleep = THREAD_STATES.index("sleep")
        looks = ((0, 101, 12), (10, 101, 12), (20, 101, 11), (20, 100, 11), (20, 102, 0))  # the first before the call
        for at_ms, tid, stack_hash in looks:
            row = tables.SAMPLES.rows(
                1, session=writer.session, time_ns=START_NS + at_ms * MS, process=1, pid=100, tid=tid, state=sleep,
                weight_ns=MS, stack_hash=stack_hash, comm=writer.intern("pt_data_pin"),
            )  # fmt: skip
            writer.append(tables.SAMPLES, row)
    with open_reader(path) as opened:
        window = opened.window(None, 0)
        assert window
        short, whole = ("\n".join(breakdown_text(opened, window, whole_stacks=is_whole)) for is_whole in (False, True))
    assert "Meanwhile" not in short
    threads = [part.splitlines() for part in whole.split("Meanwhile: ")[1:]]
    assert [lines[0].split(" when ")[0] for lines in threads] == [
        "pt_data_pin 100/101, sleeping", "pt_data_pin 100/102, sleeping",
    ]  # fmt: skip
    assert "  [Python] /srv/me/train.py:73 in Trainer.drain()" in threads[0]
    assert threads[1][1] == "  line not known: no stack"
