"""Where threads were outside GPU calls, by line."""

from __future__ import annotations

from ingero.serve.text.sample_lines import sample_lines, sampled_lines
from ingero.store.call_stacks import CallStack, NativePlace, PythonPlace
from ingero.store.records import SampleTotals

MS = 1_000_000
DECODE = PythonPlace("/srv/me/data.py", 12, "decode")
GET = PythonPlace("/usr/lib/python3.11/queue.py", 171, "Queue.get")
LOOP = PythonPlace("/srv/me/train.py", 40, "loop")
STACKS = {
    1: CallStack((), (DECODE, LOOP), ""),
    2: CallStack((), (DECODE, LOOP), ""),  # another instruction of the same line
    3: CallStack((), (GET, LOOP), ""),
    4: CallStack((NativePlace("encode", "libtok.so"),), (), ""),
}


def totals(stack_hash: int, ms: int, *, state: str = "run", tid: int = 7, is_collecting: bool = False) -> SampleTotals:
    return SampleTotals(
        process=1,
        pid=7,
        tid=tid,
        comm="python3",
        state=state,
        is_collecting=is_collecting,
        stack_hash=stack_hash,
        count=ms // 20,
        ns=ms * MS,
    )


def text(*samples: SampleTotals) -> list[str]:
    return list(sample_lines(sampled_lines(samples, STACKS)))


def test_stacks_that_differ_in_their_instruction_alone_are_one_line() -> None:
    head, line = text(totals(1, 200), totals(2, 100))
    assert "from 15 samples" in head
    assert line == "        300 ms  running: data.py:12 in decode"


def test_a_sleep_names_the_own_line_and_what_it_waits_in() -> None:
    assert text(totals(3, 900, state="sleep"))[1] == "        900 ms  sleeping: train.py:40 in loop, in Queue.get"


def test_garbage_collection_is_a_line_of_its_own() -> None:
    lines = text(totals(1, 200), totals(2, 100, is_collecting=True))
    assert lines[1:] == [
        "        200 ms  running: data.py:12 in decode",
        "        100 ms  running, collecting garbage: data.py:12 in decode",
    ]


def test_a_thread_without_python_frames_is_named_by_its_native_function() -> None:
    assert text(totals(4, 40))[1].endswith("no Python frame, in encode (libtok.so)")


def test_a_place_that_is_not_known_is_said_to_be_so() -> None:
    assert text(totals(99, 40), totals(0, 20))[1] == "       60.0 ms  running: line not known (no stack)"


def test_threads_at_one_line_are_counted() -> None:
    assert text(totals(1, 200), totals(1, 200, tid=8))[1].endswith("(2 threads)")


def test_what_ran_stands_before_what_slept_and_the_rest_is_summed() -> None:
    stacks = {number: CallStack((), (PythonPlace("/srv/a.py", number, "f"),), "") for number in range(1, 9)}
    samples = [totals(number, 100) for number in range(1, 9)] + [totals(1, 5000, state="sleep")]
    lines = list(sample_lines(sampled_lines(samples, stacks)))
    assert lines[1].endswith("running: a.py:1 in f")
    assert lines[6] == "        300 ms  running: 3 other lines"
    assert "sleeping" in lines[7]


def test_without_samples_nothing_is_said() -> None:
    assert text() == []
