"""Which interpreter each traced process has, and who reads its frames: said once, as soon as it is known."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.recorder import Recorder
from ingero.discover.python_walkers import python_text

_MOST = 16  # processes; a job of many workers would fill the screen


class PythonLines:
    """The lines of processes that were there when the recording began: interpreters are looked at meanwhile."""

    def __init__(self, recorder: Recorder, kernel: KernelSide) -> None:
        self._known, self._walker = recorder.stacks.interpreters, kernel.walker
        self._names = {target.pid: target.name for target in [*recorder.targets][:_MOST]}

    def new(self) -> Iterator[str]:
        """Of those whose interpreter is known since the last time."""
        for pid in [pid for pid in self._names if pid in self._known]:
            yield f"{self._names.pop(pid)} [{pid}]: {python_text(self._known.get(pid), self._walker)}"
