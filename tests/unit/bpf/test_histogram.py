"""The kernel side's histogram, compiled for this machine, against the bounds by which its buckets are read."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingero
from ingero.store.histograms import BUCKETS, bounds_ns, bucket_index

BPF = Path(ingero.__file__).parent / "bpf"
HOST = '#pragma once\n#include "events.h"\n#define INLINE static inline\n'
PROGRAM = '#include "histogram.h"\nunsigned bucket(unsigned long long value) { return bucket_of(value); }\n'
LONGEST_NS = 2**63 - 1
BOUNDS_NS = [bounds_ns(one)[0] for one in range(1, BUCKETS)]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    folder = tmp_path_factory.mktemp("histogram")
    for name in ("histogram.h", "events.h"):
        shutil.copy(BPF / name, folder)
    (folder / "kernel.h").write_text(HOST)
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-O2", "-shared", "-o", folder / "program.so", folder / "program.c"], check=True)
    function = ctypes.CDLL(str(folder / "program.so")).bucket
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint32
    return function


def test_the_kernel_sorts_durations_as_they_are_read(bucket: Callable[[int], int]) -> None:
    """But for what lies closer to a bound than the 16 bits by which the kernel compares."""
    durations = np.unique(np.geomspace(1, 2**62, 20_000).astype(np.int64))
    found = np.array([bucket(one) for one in durations.tolist()])
    others = np.flatnonzero(found != bucket_index(durations))
    assert len(others) < 20
    for at in others.tolist():
        assert abs(found[at] - bucket_index(durations[at])) == 1
        assert min(abs(durations[at] / bound - 1) for bound in BOUNDS_NS) < 2**-15


@pytest.mark.parametrize(("duration_ns", "expected"), [(0, 0), (127, 0), (128, 1), (LONGEST_NS, BUCKETS - 1)])
def test_the_first_and_the_last(bucket: Callable[[int], int], duration_ns: int, expected: int) -> None:
    assert bucket(duration_ns) == expected
