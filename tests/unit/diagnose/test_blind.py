"""Each cause with what it needs taken away: it is not claimed, it is listed, and no other cause takes its place.

The recordings are those of the golden pairs: each test that a rule's file begins with leaves one that fires.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ingero.diagnose.causes.rule import Rule, all_rules
from ingero.diagnose.findings import UNEXPLAINED
from tests.unit.diagnose.causes.blinded import without
from tests.unit.diagnose.causes.golden import causes, diagnosed_file

# Those of other recordings need what the recording is made of: a profile is never one in part.
OTHERS = ("older", "measured", "untimed")
RULES = [
    rule for rule in all_rules() if not any(one in (rule.explain or rule.find_events).__module__ for one in OTHERS)
]
# What else is true of the same time, though less is said by it: the state of a thread, the call it was in.
COARSER: Mapping[str, set[str]] = {
    "allocator-retry": {"allocation-churn"},
    "block-io": {"data-starvation"},
    "cpu-steal": {"gpu-slower"},  # without the seconds of CPUs nothing tells that there is a hypervisor
    "gpu-memory-fragmentation": {"gpu-out-of-memory", "allocator-retry"},
    "gpu-contention": {"gpu-slower"},
    "gpu-throttled": {"gpu-slower"},
    "io-throttled": {"block-io"},  # without the limit only the disk is seen
    "kv-cache-pressure": {"allocator-retry", "allocation-churn"},
    "memcpy-bound": {"gpu-slower"},  # a recorder gives copies up with what else enqueues, and then no GPU is judged
    "memory-pressure": {"block-io", "data-starvation"},
    "nccl-hang": {"hung-call"},
    "nccl-mismatch": {"hung-call"},
    "nccl-straggler": {"cpu-throttled"},
    "network-filesystem-wait": {"data-starvation"},
    "network-retransmit": {"data-starvation"},
    "noisy-neighbor": {"cpu-contention"},
    "pcie-link": {"gpu-slower"},
    "priority": {"cpu-contention"},
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.cause)
def test_nothing_is_claimed_that_could_not_be_seen(rule: Rule, tmp_path: Path) -> None:
    path = recording_of(rule, tmp_path)
    found = set(causes(diagnosed_file(path)))
    for name in sorted({*rule.needs, *rule.improves_with} - {"sync_intervals"}):
        diagnosis = diagnosed_file(without(path, name))
        claimed = set(causes(diagnosis))
        listed = {one.cause for one in diagnosis.not_evaluated}
        assert rule.cause in listed or (name in rule.improves_with and rule.cause in claimed), name
        assert claimed - found <= {UNEXPLAINED, *COARSER.get(rule.cause, ())}, name
        assert rule.cause not in claimed or name in rule.improves_with, name


def recording_of(rule: Rule, folder: Path) -> Path:
    """A golden recording in which the rule fires."""
    for at, play in enumerate(_golden_tests(rule)):
        place = folder / str(at)
        place.mkdir()
        play(place)
        for path in sorted(place.rglob("*.db")):
            if rule.cause in causes(diagnosed_file(path)):
                return path
    raise AssertionError(f"no test of {rule.cause} leaves a recording in which it fires")


def _golden_tests(rule: Rule) -> Iterator[Callable[[Path], Any]]:
    name = "oom" if rule.cause.endswith("-oom") else rule.cause.replace("-", "_")
    for test in vars(import_module(f"tests.unit.diagnose.causes.test_{name}")).values():
        if inspect.isfunction(test) and test.__name__.startswith("test_"):
            for values in _parameters(test):
                if {*inspect.signature(test).parameters} == {"tmp_path", *values}:
                    yield lambda folder, test=test, values=values: test(folder, **values)


def _parameters(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The values of its first `parametrize`, one set after the other."""
    mark = next((one for one in getattr(test, "pytestmark", ()) if one.name == "parametrize"), None)
    if mark is None:
        yield {}
        return
    names = [name.strip() for name in mark.args[0].split(",")] if isinstance(mark.args[0], str) else list(mark.args[0])
    for value in mark.args[1]:
        yield dict(zip(names, (value,) if len(names) == 1 else value, strict=True))
