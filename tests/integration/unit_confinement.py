"""Runs a command as a unit would have it: as a user of its own, with its capabilities and under its system call filter.

The filter is systemd's own: `systemd-analyze syscall-filter` says what is in its groups.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

UID = 998  # a service's: below those of people, whom an agent traces alone
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_ALLOW, _ERRNO, _EPERM = 0x7FFF0000, 0x00050000, 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def confined(unit: str, folder: Path, command: Sequence[str], *, uid: int = UID) -> list[str]:
    """The command line that runs `command` as the unit says. folder: for a file of its own."""
    numbers = folder / "system-calls.json"
    numbers.write_text(json.dumps(sorted(_numbers(allowed_calls(unit)))))
    capabilities = [name.removeprefix("CAP_").lower() for name in _values(unit, "AmbientCapabilities")]
    kept = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return [
        "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", f"--bounding-set={kept}",
        f"--inh-caps={kept}", f"--ambient-caps={kept}", sys.executable, __file__, str(numbers), *command,
    ]  # fmt: skip


def allowed_calls(unit: str) -> set[str]:
    """Names of the system calls that the lines of a unit allow, in their order: later ones beat earlier ones."""
    found = set(_expanded("@default"))
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        names = {name for word in line.lstrip("~").split() for name in _expanded(word)}
        found = found - names if line.startswith("~") else found | names
    return found


@cache
def _expanded(word: str) -> frozenset[str]:
    if not word.startswith("@"):
        return frozenset({word})
    command = ["systemd-analyze", "syscall-filter", word]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return frozenset(name for each in words for name in _expanded(each))


def _numbers(names: set[str]) -> Iterator[int]:
    """As this machine counts them; of calls that it does not have, none."""
    command = ["gcc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.MULTILINE):
        if name in names:
            yield int(number)


def _values(unit: str, key: str) -> list[str]:
    return [word for line in re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE) for word in line.split()]


def _filter_calls(numbers: Sequence[int]) -> None:
    """From here on every other system call is answered by EPERM, as SystemCallErrorNumber says."""
    steps = [(_LOAD, 0, 0, 0)]  # the number of the call
    for number in numbers:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _ERRNO | _EPERM))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    _filter_calls(json.loads(Path(sys.argv[1]).read_text()))
    os.execv(sys.argv[2], sys.argv[2:])
