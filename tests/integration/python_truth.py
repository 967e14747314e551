"""The stacks workload: where each of its calls was made by its own account, and what a recording says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingero.demo.gpusim.build import build, environment
from ingero.store.reader import open_reader
from tests.integration.tracing import Tracer, tracing

_WORKLOAD = Path(__file__).parent / "stacks" / "workload.py"
_SECOND_NUMBERS = 1_000_000  # of calls; beyond those of the first process and of its child
_UNNAMED = ["?", 0, "?"]  # its code object was lost
_LOST = (
    "stacks_ring_full",
    "python_code_ring_full",
    "stack_parts_missing",
    "stacks_not_resolved",
    "python_code_unreadable",
)


@dataclass(frozen=True)
class Subject:
    """A way to run Python.

    root: the folder it is locked into, None for this machine's own. variables: beside those of the simulated GPU.
    in_namespace: it gets process numbers of its own.
    """

    name: str
    program: Path
    root: Path | None = None
    variables: Mapping[str, str] | None = None
    in_namespace: bool = False

    def inside(self, path: Path) -> Path:
        """The place in the coordinates of the recorded program."""
        return Path("/") / path.relative_to(self.root) if self.root else path

    def command(self, *arguments: object) -> list[str]:
        """The command line of the program."""
        command = [str(self.program), *map(str, arguments)]
        if self.root:
            command = ["chroot", str(self.root), *command]
        return ["unshare", "--pid", "--fork", "--mount-proc", *command] if self.in_namespace else command


@dataclass(frozen=True)
class Comparison:
    """What came of one run.

    wrong, missing: (the truth, what was recorded of it); missing are calls without a stack and frames without a name,
    which the loss counters must explain. wrong_by_case, missing_by_case: how many of each case.
    """

    total: int
    reused: int
    wrong: list[tuple[dict[str, Any], Any]]
    missing: list[tuple[dict[str, Any], Any]]
    wrong_by_case: Counter[str]
    missing_by_case: Counter[str]
    lost: dict[str, int]
    notes: Counter[str]

    def __str__(self) -> str:
        right = f"{self.total - len(self.wrong) - len(self.missing)} of {self.total} exactly right"
        return f"{right}, {len(self.missing)} incomplete" if self.missing else right


def compare(
    subject: Subject,
    folder: Path,
    reused: int,
    *,
    agent_variables: Mapping[str, str] | None = None,
    is_counted: bool = False,
) -> Comparison:
    """Records the workload and compares.

    reused: code objects freed at once, so that their addresses are used again. is_counted: not before the agent has
    them counted, as it does for an interpreter that does not count them itself and is there for a while.
    """
    with (
        _workload(subject, folder, reused) as workload,
        _tracing(folder, workload, variables=agent_variables) as tracer,
    ):
        if is_counted:
            _wait_until_counted(tracer, workload)
        workload.run()
    return _compared(tracer, workload)


def compare_both(subject: Subject, folder: Path, reused: int) -> tuple[Comparison, Comparison]:
    """Two processes in one recording: one that is gone soon, and one that waits until what it frees is counted."""
    with (
        _workload(subject, folder, reused) as soon,
        _workload(subject, folder, reused, first_number=_SECOND_NUMBERS) as later,
        _tracing(folder, soon, later) as tracer,
    ):
        soon.run()
        _wait_until_counted(tracer, later)
        later.run()
    return _compared(tracer, soon), _compared(tracer, later)


@dataclass(frozen=True)
class _Workload:
    """A workload that waits to be run, and the file that it will write the truth into."""

    process: subprocess.Popen[str]
    pid: int
    truth_file: Path

    def run(self) -> None:
        assert self.process.stdout
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def truth(self) -> list[dict[str, Any]]:
        files = (self.truth_file, Path(f"{self.truth_file}.child"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _tracing(
    folder: Path, *workloads: _Workload, variables: Mapping[str, str] | None = None
) -> AbstractContextManager[Tracer]:
    pids = [workload.pid for workload in workloads]
    return tracing(folder, pids=pids, options=["--record-all", "--debug"], environment=variables)


def _wait_until_counted(tracer: Tracer, workload: _Workload) -> None:
    while f"freed code of {workload.pid} is counted" not in tracer.stderr_text():
        tracer.wait_for("second")


def _compared(tracer: Tracer, workload: _Workload) -> Comparison:
    drops, truth = tracer.messages[-1]["drops"], workload.truth()
    with open_reader(tracer.database) as reader:
        rows = reader.connection.execute(
            "SELECT e.arg0, s.frames, s.note FROM events e LEFT JOIN stack_traces s ON s.hash = e.stack_hash"
            " WHERE e.op_name = 'cudaMemset'"
        ).fetchall()
    numbers = {one["number"] for one in truth}
    found = {size: json.loads(frames) if frames else [] for size, frames, _ in rows}
    differing = [
        (one, found.get(one["number"])) for one in truth if _python(found.get(one["number"])) != _expected(one)
    ]
    missing = [pair for pair in differing if _is_part(_python(pair[1]), _expected(pair[0]))]
    wrong = [pair for pair in differing if pair not in missing]
    return Comparison(
        total=len(truth),
        reused=sum(one["case"] == "freed code" for one in truth),
        wrong=wrong,
        missing=missing,
        wrong_by_case=Counter(one["case"] for one, _ in wrong),
        missing_by_case=Counter(one["case"] for one, _ in missing),
        lost={name: drops[name] for name in _LOST if drops.get(name)},
        notes=Counter(note for size, _, note in rows if size in numbers),
    )


@contextmanager
def _workload(subject: Subject, folder: Path, reused: int, *, first_number: int = 1) -> Iterator[_Workload]:
    place = subject.root / "tmp" / "stacks" if subject.root else folder
    place.mkdir(exist_ok=True)
    truth = place / f"truth.{first_number}"
    libraries, workload = build(), _WORKLOAD
    if subject.root:
        libraries = shutil.copytree(libraries, place / "gpu", dirs_exist_ok=True)
        workload = Path(shutil.copy(_WORKLOAD, place))
    inside = (subject.inside(path) for path in (workload, libraries / "libcudart.so.12", truth))
    command = subject.command(*inside, reused, first_number)
    variables = {**os.environ, **environment(subject.inside(libraries)), **(subject.variables or {})}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        pid = process.pid
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            if subject.in_namespace:
                pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
            yield _Workload(process, pid, truth)
        finally:
            process.kill()


def _python(frames: Sequence[dict[str, Any]] | None) -> list[list[Any]]:
    return [[one["py_file"], one["py_line"], one["py_func"]] for one in frames or () if "py_file" in one]


def _is_part(found: list[list[Any]], expected: list[list[Any]]) -> bool:
    """Whether nothing that was found is wrong: there are no frames, or some that say nothing."""
    if not found:
        return True
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(one in (other, _UNNAMED) for one, other in pairs)


def _expected(one: dict[str, Any]) -> list[list[Any]]:
    """As much of the truth as is recorded: 128 frames, 256 bytes of a name."""
    return [[file, line, name if len(name) <= 256 else name[:256] + "..."] for file, line, name in one["frames"][:128]]
