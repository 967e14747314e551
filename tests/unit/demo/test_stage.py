"""The run of a scenario knows when the fault was on: what comes before it is what the scenario compares with."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingero.demo.faults import Fault, Workload
from ingero.demo.simulated_stage import SimulatedRun


def test_a_fault_is_on_from_its_first_hog_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []

    @contextmanager
    def hogging(_fault: Fault, _target: Workload) -> Iterator[SimpleNamespace]:
        times.append(time.time_ns())
        yield SimpleNamespace(culprits=[1, 2])
        times.append(time.time_ns())

    monkeypatch.setattr(Fault, "apply", hogging)
    run = SimulatedRun(
        tmp_path, say=lambda _text: None, watch_recording=lambda _path, _pid: None, python=Path(sys.executable)
    )
    run._main = cast(Any, SimpleNamespace(pid=os.getpid()))
    with run.hogs(name="hog", per_cpu=2):
        pass
    assert run.fault is not None
    assert run.fault.begin_ns <= times[0] < times[1] <= run.fault.end_ns
