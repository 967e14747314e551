"""Lines about the Python interpreter of each traced process and the reader of its frames, as soon as it is known."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.recorder import Recorder
from ingero.discover.python_walkers import python_text

_MOST = 16  # processes; a job of many workers would fill the screen


class PythonLines:
    """The lines of processes that ran when the recording started; their interpreters are identified meanwhile."""

    def __init__(self, recorder: Recorder, kernel: KernelSide) -> None:
        self._known, self._walker = recorder.stacks.interpreters, kernel.walker
        self._names = {process.pid: process.name for process in [*recorder.traced_processes][:_MOST]}

    def new(self) -> Iterator[str]:
        """Lines of the processes whose interpreter has become known since the last call."""
        for pid in [pid for pid in self._names if pid in self._known]:
            yield f"{self._names.pop(pid)} [{pid}]: {python_text(self._known.get(pid), self._walker)}"
