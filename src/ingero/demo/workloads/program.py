"""Starts a workload as a child process, waits for what it announces, and ends it."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import ingero
from ingero.errors import IngeroError


class WorkloadError(IngeroError):
    """A workload ended before it announced what its caller waits for."""


def module_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which `sys.executable -m ingero...` finds the package.

    The program of a release and of the image runs isolated and adds the package's folder to its own search path only.
    """
    if not sys.flags.isolated:
        return dict(variables)
    folder = str(Path(ingero.__file__).parents[1])
    before = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": f"{folder}:{before}" if before else folder}


class Program:
    """A running child, in the caller's session: the scheduler weighs sessions against each other (autogroup), so a
    disturbance started elsewhere would hardly disturb.

    `cgroups` are cgroup directories that the child enters before its program starts. Standard output is kept for
    `finish`, standard error is read line by line. Leaving the with-block ends the child, by SIGKILL if it has not
    followed SIGTERM after `patience_s`.

    Raises:
        WorkloadError: from `wait_for`, if the child ends first.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cgroups: Sequence[Path] = (),
        patience_s: float = 5.0,
    ) -> None:
        entering = "".join(f'echo $$ > "{group}/cgroup.procs" && ' for group in cgroups)
        wrapped = ["sh", "-c", entering + 'exec "$@"', "sh", *command] if cgroups else list(command)
        self.process = subprocess.Popen(
            wrapped, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.patience_s = patience_s
        self.errors: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stdout = ""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_errors, self._read_output)]
        for reader in self._readers:
            reader.start()

    @classmethod
    def module(
        cls,
        name: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        cgroups: Sequence[Path] = (),
        patience_s: float = 5.0,
    ) -> "Program":
        """Start `python -m ingero.demo.workloads.<name>`."""
        command = [sys.executable, "-m", f"ingero.demo.workloads.{name}", *map(str, arguments)]
        variables = module_environment(os.environ if environment is None else environment)
        return cls(command, environment=variables, cgroups=cgroups, patience_s=patience_s)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_for(self, word: str = "ready") -> list[str]:
        """Return the rest of the first line on standard error that starts with `word` (the PID, then details)."""
        while (line := self._lines.get()) != "":
            first, *rest = line.split()
            if first == word:
                return rest
        raise WorkloadError(
            f"pid {self.pid} ended before it was {word}: {''.join(self.errors)[-2000:]}",
            hint=f"run it by hand: {self.process.args!r}",
        )

    def finish(self) -> str:
        """Wait for its own end; return its standard output.

        Raises:
            WorkloadError: it ended with another status than 0.
        """
        status = self.process.wait()
        self._join()
        if status:
            raise WorkloadError(f"pid {self.pid} ended with {status}: {''.join(self.errors)[-2000:]}")
        return self._stdout

    def stop(self) -> int:
        """End it, by SIGKILL if it does not follow SIGTERM; return its exit status (negative: the signal)."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.patience_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        status = self.process.wait()
        self._join()
        return status

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                self.errors.append(line)
                if line.strip():
                    self._lines.put(line)
        self._lines.put("")

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self._stdout = self.process.stdout.read()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join()
