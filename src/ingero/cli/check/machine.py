"""`ingero check` of this host: gathers its facts, and prints the rows made of them as text or JSON."""

from __future__ import annotations

import logging
import os
import pwd
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from ingero.attach.libbpf import libbpf_version
from ingero.attach.objects import object_path
from ingero.capture.foreign import readers
from ingero.cli.config.settings import resolve
from ingero.discover.checks import CheckFacts, CheckRow, CheckState, CudaProcess, GpuFacts, is_ready
from ingero.discover.gpus import open_nvml
from ingero.discover.kernel import read_kernel
from ingero.discover.libraries import LibraryScan, LibraryScanner
from ingero.discover.platforms import (
    container_runtimes,
    has_own_root,
    orchestrators,
    own_placement,
    placement_of_process,
)
from ingero.discover.processes import PROC, list_pids, read_process
from ingero.discover.python_walkers import CHOSEN_USERSPACE, KERNEL_WALKER, PyWalker, Walker
from ingero.errors import IngeroError
from ingero.program import command as own_command
from ingero.serve.text.styles import Line, Style, marked

_DRIVER_FILE = PROC / "driver" / "nvidia" / "version"
# A check may take ten seconds: after _MAX_S no further process is read, and a read in progress has three more.
_MAX_S, _SEARCH_S, _PAUSE_S = 6.5, 2.0, 0.05
_WIDTH, _NAME_WIDTH = 80, 23
_FIX = "fix:"
_MARKS = {
    CheckState.OK: "ok",
    CheckState.WARNING: "warning",
    CheckState.MISSING: "MISSING",
    CheckState.NOT_HERE: "not here",
}
_MARK_WIDTH = 9
_STYLES = {
    CheckState.OK: Style.OK,
    CheckState.WARNING: Style.WARNING,
    CheckState.MISSING: Style.FAILED,
    CheckState.NOT_HERE: Style.DIM,
}


def gather() -> CheckFacts:
    """The facts about this host, within ten seconds whatever its processes do; the sandbox reads their files."""
    logging.getLogger("ingero.capture").addHandler(logging.NullHandler())  # rows report it
    until_s = time.monotonic() + _MAX_S
    names, uid = process_names(), _traced_uid()
    with readers.nursery() as makes, readers.ForeignReaders(makes) as reads:
        on_disk = _on_disk(reads)
        scan, processes, unseen = _processes(reads, uid, until_s)
        withheld = reads.memory_files.withholding()
    return CheckFacts(
        kernel=read_kernel(),
        scan=scan,
        on_disk=on_disk,
        gpu=_gpu(),
        processes=[process for _, process in sorted(processes.items()) if process],
        placement=own_placement(),
        runtimes=container_runtimes(names),
        orchestrators=orchestrators(names, os.environ),
        agent=list(_agent_rows()),
        walker=_walker(),
        has_own_root=has_own_root(),
        withheld=withheld,
        unseen=len(unseen.difference(withheld)),
    )


def _on_disk(reads: readers.ForeignReaders) -> list[Path]:
    reads.disk.longest_s = _SEARCH_S
    try:
        return [copy.path for copy in reads.disk.copies(Path("/"))]
    except OSError:  # a file system does not answer; loaded libraries are found without it
        return []


def _processes(
    reads: readers.ForeignReaders, uid: int | None, until_s: float
) -> tuple[LibraryScan, dict[int, CudaProcess | None], set[int]]:
    """The libraries that processes use, the facts about these processes, and the pids for which there was no time."""
    scanner = LibraryScanner(reader=reads.libraries, is_turn_over=lambda: time.monotonic() > until_s)
    scan = scanner.scan()
    known: dict[int, CudaProcess | None] = {}
    while True:
        for pid in sorted({*scan.pids} - known.keys() - reads.pids):
            if time.monotonic() < until_s:
                known[pid] = _process(pid, uid, reads)
        unseen = {*scan.pids, *scanner.put_off} - known.keys() - reads.pids
        if not scanner.put_off or time.monotonic() >= until_s:
            return scan, known, unseen
        time.sleep(_PAUSE_S)  # each user has a share of the time, which grows
        scan = scanner.rescan({pid for pid in scanner.put_off if reads.libraries.may_read(pid)})


def process_names() -> set[str]:
    """The names of all processes."""
    names = set()
    for pid in list_pids():
        try:
            names.add((PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n"))
        except OSError:  # it has ended
            continue
    return names


def as_text(rows: Sequence[CheckRow]) -> Iterator[Line]:
    """Lines of at most 80 columns."""
    for section, group in groupby(rows, key=lambda row: row.section):
        yield marked(section, (0, len(section), Style.HEADING))
        above = ("", "")
        for row in group:
            yield from _row_text(row, is_repeated=bool(row.fix) and (row.found, row.fix) == above)
            above = (row.found, row.fix)
    yield ""
    missing = [row.name for row in rows if row.state is CheckState.MISSING]
    word, style = ("not ready", Style.FAILED) if missing else ("ready", Style.OK)
    text = f"{word}: {', '.join(missing) if missing else own_command('trace', as_root=True)}"
    first, *more = textwrap.wrap(text, _WIDTH, subsequent_indent="  ")
    yield marked(first, (0, len(word), style))
    yield from more


def _row_text(row: CheckRow, *, is_repeated: bool) -> Iterator[Line]:
    name = f"  {row.name:{_NAME_WIDTH}}"
    head = f"{name}{_MARKS[row.state]:{_MARK_WIDTH}}"
    found, fix = _row_lines(row, head, is_repeated=is_repeated)
    yield marked(found[0], (len(name), len(name) + len(_MARKS[row.state]), _STYLES[row.state]))
    yield from found[1:]
    for place, line in enumerate(fix):
        text = len(_FIX) if place == 0 else 0
        indent = len(line) - len(line.lstrip(" "))
        yield marked(line, (indent, indent + text, Style.HEADING), (indent + text, len(line), Style.COMMAND))


def _row_lines(row: CheckRow, head: str, *, is_repeated: bool) -> tuple[list[str], list[str]]:
    """The lines of a row's finding, which start with `head`, and the lines of its fix, if there is one."""
    if is_repeated:
        return [f"{head}as above"], []
    if max(map(len, row.found.split()), default=0) > _WIDTH - len(head):  # a long path gets lines of its own
        found = [head.rstrip(), *_wrapped(row.found, first="      ", next_lines="      ")]
    else:
        found = _wrapped(row.found, first=head, next_lines=" " * len(head))
    fix = _wrapped(f"{_FIX} {row.fix}", first="      ", next_lines="           ") if row.fix else []
    return found or [head.rstrip()], fix


def _wrapped(text: str, *, first: str, next_lines: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=next_lines, break_on_hyphens=False)


def as_json(rows: Sequence[CheckRow]) -> dict[str, object]:
    return {
        "version": 1,
        "ready": is_ready(rows),
        "rows": [
            {
                "section": row.section,
                "name": row.name,
                "state": row.state.value,
                "found": row.found,
                "fix": row.fix or None,
            }
            for row in rows
        ],
    }


def _gpu() -> GpuFacts:
    with open_nvml() as nvml:
        version = nvml.driver_version or _driver_in_proc()
        return GpuFacts(version=version, gpus=nvml.gpus, reason=nvml.reason)


def _driver_in_proc() -> str | None:
    """The version of the loaded kernel module, which is there even where its library is not (in a container)."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", _DRIVER_FILE.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _traced_uid() -> int | None:
    """The user whose processes `trace` would trace by ingero.yaml and the environment; None: all users."""
    with suppress(IngeroError):
        return resolve({}, os.environ, uid=os.getuid()).uid
    return None


def _process(pid: int, traced_uid: int | None, reads: readers.ForeignReaders) -> CudaProcess | None:
    process = read_process(pid, stat_of=reads.memory_files.stat)
    if process is None:
        return None
    try:
        user = pwd.getpwuid(process.uid).pw_name
    except KeyError:
        user = f"uid {process.uid}"
    return CudaProcess(
        pid=pid,
        name=process.name,
        user=user,
        interpreter=reads.native.memory.interpreter(pid),
        placement=placement_of_process(pid),
        is_left_out=traced_uid is not None and process.uid != traced_uid,
    )


def _agent_rows() -> Iterator[CheckRow]:
    """The rows of ingero's own parts, found by the functions that load them."""
    for name, find in (("libbpf", libbpf_version), ("BPF programs", lambda: _built(object_path("api_calls")))):
        try:
            yield CheckRow(section="ingero", name=name, state=CheckState.OK, found=find())
        except IngeroError as error:
            yield CheckRow(section="ingero", name=name, state=CheckState.MISSING, found=str(error), fix=error.hint)


def _walker() -> Walker:
    """The reader of Python frames by ingero.yaml and the environment; `trace` reports errors in these."""
    with suppress(IngeroError):
        if resolve({}, os.environ, uid=os.getuid()).py_walker is PyWalker.USERSPACE:
            return Walker(is_kernel=False, reason=CHOSEN_USERSPACE)
    return KERNEL_WALKER


def _built(path: Path) -> str:
    return f"built for {path.parent.name}"
