"""A driver that does not answer is waited for neither at the end nor after it was killed."""

from __future__ import annotations

import subprocess

import pytest

from ingero.discover import driver_offsets
from ingero.discover.driver_offsets import _status_of


@pytest.mark.parametrize("is_over", [False, True])
def test_a_driver_that_does_not_answer_is_killed(is_over: bool) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert _status_of(process, 1000 if is_over else 0.0, lambda: is_over) is None
        assert process.wait() == -9


def test_one_that_answers_is_waited_for() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 0.3; exit 3"]) as process:
        assert _status_of(process, 1000, lambda: False) == 3


def test_those_that_do_not_end_are_not_waited_for_and_not_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose library lies in a file system that has its question."""
    monkeypatch.setattr(driver_offsets, "_killed", [])
    with subprocess.Popen(["sleep", "1000"]) as process:
        monkeypatch.setattr(process, "kill", lambda: None)
        assert _status_of(process, 0.0, lambda: False) is None
        assert driver_offsets._killed == [process]
        monkeypatch.setattr(driver_offsets, "_MAX_KILLED", 1)
        with open("/dev/null", "rb") as file:  # noqa: PTH123  # only its descriptor counts
            said = driver_offsets.ask_driver(file.fileno(), None, [], timeout_s=1)  # type: ignore[arg-type]  # not asked
        assert said == "those that were asked before have not ended yet"
        monkeypatch.undo()
        process.kill()
