"""What was freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FREED = """
import sys
from pathlib import Path
import numpy as np
from ingero.capture.loop.heap import return_large_blocks
if sys.argv[1] == "yes":
    return_large_blocks()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
del_me = np.ones(4 << 20, np.uint8)  # of itself glibc takes blocks of this size from its heap once one was freed
del del_me
before = resident()
blocks = [np.ones(1 << 20, np.uint8) for _ in range(64)]
pins = blocks[-1]
del blocks
print(resident() - before)
"""

_END = """
import sys
from pathlib import Path
import numpy as np
from ingero.capture.loop.heap import return_large_blocks
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
del_me = np.ones(24 << 20, np.uint8)  # of itself glibc keeps twice of this at the heap's end once it was freed
del del_me
if sys.argv[1] == "yes":
    return_large_blocks()
before = resident()
blocks = [np.ones(64 << 10, np.uint8) for _ in range(640)]
del blocks
print(resident() - before)
"""

_SMALL = """
import sys
from pathlib import Path
import numpy as np
from ingero.capture.loop.heap import return_freed
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
blocks = [np.ones(64 << 10, np.uint8) for _ in range(1024)]
del blocks[:-1]
if sys.argv[1] == "yes":
    return_freed()
print(resident() - before)
"""
_needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


@_needs_glibc
@pytest.mark.parametrize("program", [_FREED, _END, _SMALL], ids=["large", "end", "small"])
def test_what_glibc_would_keep_is_given_back(program: str) -> None:
    grown = {
        answer: int(subprocess.run([sys.executable, "-c", program, answer], check=True, capture_output=True).stdout)
        for answer in ("yes", "no")
    }
    assert grown["yes"] < 8 << 20 < 32 << 20 < grown["no"]
