"""What is attached again when more is traced: files that went or came meanwhile, and stacks whatever is given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.capture.budget.levels import Level
from tests.integration.callers import build_library, caller
from tests.integration.targets import rows
from tests.integration.test_overhead_limiter import governed, run_script

pytestmark = pytest.mark.integration


def counted(database: Path) -> int:
    return int(rows(database, "SELECT sum(count) FROM raw_op_stats")[0][0])


def test_a_file_that_is_deleted_while_it_is_not_traced_is_probed_again(tmp_path: Path) -> None:
    library = build_library(tmp_path / "lib")
    with caller() as process:
        process.do("load", library)
        with governed(tmp_path, process.pid) as recording:

            def script() -> Iterator[None]:
                process.do("call", 3, 1)
                recording.recorder.overhead_limiter.apply(frozenset({Level.MEMORY_OFF}), "the test")
                library.unlink()
                process.do("call", 50, 1)
                yield
                recording.recorder.overhead_limiter.apply(frozenset(), "the test")
                process.do("call", 7, 1)
                process.end()

            run_script(recording, script())
    assert counted(recording.database) == 3 + 7


def test_a_library_that_is_loaded_while_less_is_traced_is_probed_when_more_is(tmp_path: Path) -> None:
    library = build_library(tmp_path / "lib")
    with caller() as process, governed(tmp_path, process.pid) as recording:

        def script() -> Iterator[None]:
            recording.recorder.overhead_limiter.apply(frozenset({Level.MEMORY_OFF}), "the test")
            process.do("load", library)
            while not recording.recorder.libraries.copies:
                yield
            process.do("call", 50, 1)
            recording.recorder.overhead_limiter.apply(frozenset(), "the test")
            process.do("call", 7, 1)
            process.end()

        run_script(recording, script())
    assert counted(recording.database) == 7


def test_stacks_are_taken_whatever_calls_are_given_up(tmp_path: Path) -> None:
    library = build_library(tmp_path / "lib")
    with caller() as process:
        process.do("load", library)
        with governed(tmp_path, process.pid, with_stacks=True) as recording:
            overhead_limiter = recording.recorder.overhead_limiter

            def script() -> Iterator[None]:
                process.do("call", 3, 1)
                overhead_limiter.apply(frozenset({Level.LAUNCHES_AT_DRIVER}), "the test")
                process.do("call", 5, 1)
                overhead_limiter.apply(frozenset({Level.LAUNCHES_OFF}), "the test")
                process.do("call", 11, 1)
                yield
                overhead_limiter.apply(frozenset(), "the test")
                process.do("call", 7, 1)
                process.end()

            run_script(recording, script())
    found = rows(
        recording.database, "SELECT sum(stack_hash <> 0), sum(stack_hash = 0) FROM raw_events WHERE source = 1"
    )
    assert found == [(3 + 5 + 11 + 7, 0)]
