"""Finds probe sites that only cuGetProcAddress knows: entry points that are not exported symbols.

One copy of libcuda is asked in a short-lived, isolated child process (`driver_offsets_child.py`), never in a traced
one. What the child answers is checked here against the code segments of the file.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ingero.discover.elf import ElfFile, UnreadableElfError
from ingero.discover.entry_points import entry_points
from ingero.discover.library_files import LibraryFile
from ingero.discover.sites import MissingSite, Origin, Site, SiteReport, assign
from ingero.ops import Library, Op

_CHILD = Path(__file__).parent / "driver_offsets_child.py"
_POLL_PERIOD_S = 0.1
_MAX_KILLED = 8  # that have not ended yet
_ANSWER_BYTES = 1 << 20  # 150 addresses need 2 KB; the child's own limit is the same
_MAX_DRIVER_BYTES = 512 << 20  # the child copies it into memory; libcuda.so.1 of driver 580 has 100 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOffsets:
    """The entry points that one copy of libcuda returned.

    sites: places that no exported symbol covers.
    replaced: exported sites whose code runs into one of `sites`; a probe in both would count a call twice.
    asked: entry points asked for; not_offered: those the driver does not know; outside: pointers to no code of the
        file, which cannot be probed.
    failure: why nothing could be asked; empty if it could.
    """

    sites: tuple[Site, ...] = ()
    replaced: tuple[Site, ...] = ()
    asked: int = 0
    not_offered: int = 0
    outside: int = 0
    failure: str = ""

    def added_to(self, report: SiteReport) -> SiteReport:
        """The report plus the driver's unexported entry points."""
        sites = tuple(site for site in report.sites if site not in self.replaced) + self.sites
        seen = {site.op.id for site in self.sites}
        missing: tuple[MissingSite, ...] = tuple(one for one in report.missing if one.op.id not in seen)
        return replace(report, sites=sites, missing=missing)


def driver_offsets(
    file: LibraryFile,
    exported: Sequence[Site],
    *,
    timeout_s: float = 10,
    environ: Mapping[str, str] | None = None,
) -> DriverOffsets:
    """Asks a copy of libcuda for all entry points of traced calls.

    exported: the sites of its exported symbols.
    environ: of the child; None: the agent's own.
    Failures are an answer (`failure`), not an error: the exported symbols can still be probed.
    """
    if file.library is not Library.CUDA:
        return DriverOffsets(failure=f"{file.path.name} is not libcuda")
    try:
        with ElfFile(file.path) as elf:
            answer = ask_driver(elf.fileno(), file, elf.needed, timeout_s=timeout_s, environ=environ)
            if isinstance(answer, str):
                return DriverOffsets(asked=len(entry_points()), failure=answer)
            return read_answer(elf, exported, answer)
    except (OSError, UnreadableElfError) as error:
        return DriverOffsets(asked=len(entry_points()), failure=str(error))


def ask_driver(
    descriptor: int,
    file: LibraryFile,
    needed: Sequence[str],
    *,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[int | None] | str:
    """The addresses that an open copy of libcuda returns for each of `entry_points()`, or why there are none.

    needed: the names of the libraries that it needs. is_over: whether the caller should stop waiting.
    """
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes > _MAX_DRIVER_BYTES:
        return f"it is larger than {_MAX_DRIVER_BYTES >> 20} MiB, larger than any driver"
    _killed[:] = [one for one in _killed if one.poll() is None]
    if len(_killed) >= _MAX_KILLED:
        return "those that were asked before have not ended yet"
    wanted = entry_points()
    request = {
        "fd": descriptor,
        "needed": list(needed),
        "trusted": _is_trusted(descriptor, file),
        "entry_points": [(point.name, point.version, point.flags) for point in wanted],
    }
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as question:
        question.write(json.dumps(request).encode())
        question.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD)],
            stdin=question,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            env=environ,
            start_new_session=True,
        )
        status = _status_of(process, timeout_s, is_over)
        if status is None:
            return f"it did not answer within {timeout_s:g} s"
        if status != 0:
            return f"the process that loaded it ended with status {status}"
        answer.seek(0)
        return _parse(answer.read(_ANSWER_BYTES), len(wanted))


_killed: list[subprocess.Popen[bytes]] = []


def _status_of(process: subprocess.Popen[bytes], timeout_s: float, is_over: Callable[[], bool]) -> int | None:
    """The exit status; None: it was killed. Its end is not awaited: its library may be on a file system that hangs."""
    until_s = time.monotonic() + timeout_s
    while (left_s := until_s - time.monotonic()) > 0 and not is_over():
        try:
            return process.wait(min(left_s, _POLL_PERIOD_S))
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()
        _killed.append(process)
        return None
    return process.returncode


def _parse(raw: bytes, expected: int) -> list[int | None] | str:
    """Validates the answer: it comes from a process that ran foreign code."""
    try:
        answer: Any = json.loads(raw)
    except ValueError:
        return "its answer cannot be read"
    if not isinstance(answer, dict):
        return "its answer cannot be read"
    if "failure" in answer:
        return str(answer["failure"])[:500]
    addresses = answer.get("addresses")
    if not isinstance(addresses, list) or len(addresses) != expected:
        return "its answer cannot be read"
    return [address if isinstance(address, int) else None for address in addresses]


def _is_trusted(descriptor: int, file: LibraryFile) -> bool:
    """Whether only root (or the agent's own user) can have written the file: then isolation is not required."""
    status = os.fstat(descriptor)
    owner_only = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return owner_only and status.st_uid in (0, os.geteuid()) and not str(file.path).startswith("/proc/")


def read_answer(elf: ElfFile, exported: Sequence[Site], addresses: Sequence[int | None]) -> DriverOffsets:
    """Turns the addresses of `ask_driver` into sites. exported: the sites of the file's exported symbols."""
    wanted = entry_points()
    named: list[tuple[Op, str, int]] = []
    outside = 0
    for point, address in zip(wanted, addresses, strict=True):
        offset = elf.file_offset(address) if address is not None else None
        if offset is not None:
            named.append((point.op, point.symbol, offset))
        elif address is not None:
            outside += 1
    sites, _ = assign(elf, named, Origin.ENTRY_POINT, taken=exported)
    return DriverOffsets(
        sites=sites,
        replaced=tuple(_running_into(elf, exported, {site.file_offset for site in sites})),
        asked=len(wanted),
        not_offered=sum(1 for address in addresses if address is None),
        outside=outside,
    )


def _running_into(elf: ElfFile, exported: Sequence[Site], targets: set[int]) -> Iterable[Site]:
    return (site for site in exported if _next_place(elf, site.file_offset) in targets)


def _next_place(elf: ElfFile, offset: int) -> int:
    """The offset where code continues after leading no-ops and one direct jump."""
    if elf.machine != "EM_X86_64":
        return offset
    code = elf.read_at(offset)
    while code[:1] == b"\x90":
        code, offset = code[1:], offset + 1
    if code[:1] == b"\xe9" and len(code) >= 5:
        return offset + 5 + int.from_bytes(code[1:5], "little", signed=True)
    if code[:1] == b"\xeb" and len(code) >= 2:
        return offset + 2 + int.from_bytes(code[1:2], "little", signed=True)
    return offset
