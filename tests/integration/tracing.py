"""Runs `ingero trace` beside a workload, as a user would, and opens what it recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A governed recording leaves out what costs too much: the tests count everything unless they ask for a budget.
_UNGOVERNED = ("--max-overhead=0", "--max-cpu=0")


@dataclass
class Tracer:
    """A running `ingero trace --json`; `messages` holds the lines read so far."""

    process: subprocess.Popen[str]
    database: Path
    messages: list[dict[str, Any]] = field(default_factory=list)

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Reads lines until one of this type."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.append(json.loads(line))
            if self.messages[-1]["type"] == kind:
                return self.messages[-1]
        raise AssertionError(f"the tracer ended before it said {kind!r}: {self._errors()}")

    def stop(self) -> None:
        """Ends the recording in good order."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.wait_for("finished")
        assert self.process.wait() == 0, self._errors()

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def tracing(
    folder: Path,
    *,
    pids: Sequence[int] = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Tracer]:
    """A tracer that has attached its probes; leaving the block stops it."""
    database = folder / "recording.db"
    command = [
        sys.executable,
        "-m",
        "ingero.cli.main",
        "trace",
        "--json",
        "--db",
        str(database),
        *_UNGOVERNED,
        *options,
    ]
    if pids:
        command += ["--pid", ",".join(map(str, pids))]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "INGERO_RUN_DIR": str(folder), **(environment or {})}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    tracer = Tracer(process, database)
    try:
        tracer.wait_for("started")
        yield tracer
        if process.poll() is None:
            tracer.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
