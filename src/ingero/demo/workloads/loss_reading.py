"""The ways in which a loop reads its loss: after a GPU sync, some steps behind, or without a wait."""

from collections import deque
from collections.abc import Callable

from ingero.demo.workloads.minitorch import Tensor, cuda

WAYS = ("stream", "event", "memcpy", "device", "never", "query", "pageable", "behind")


def reader(way: str, behind: int = 1) -> Callable[[Tensor], object]:
    """Return the function that reads a loss in one of WAYS.

    `never` leaves the pace to the launch queue's depth; `behind` waits for the step so many before this one.
    """
    return {
        "stream": Tensor.item,
        "memcpy": Tensor.copy_to_host_blocking,
        "pageable": Tensor.copy_to_ordinary_host,
        "never": Tensor.copy_to_host,
        "event": EventReader().read,
        "device": after_device,
        "query": after_queries,
        "behind": EarlierStepReader(behind).read,
    }[way]


def after_device(loss: Tensor) -> None:
    """Wait for everything on the device."""
    loss.copy_to_host()
    cuda.synchronize()


def after_queries(loss: Tensor) -> None:
    """Ask until the stream is empty."""
    loss.copy_to_host()
    while not cuda.Stream.default().query():
        pass


class EventReader:
    """Waits for an event behind the copy."""

    def __init__(self) -> None:
        self._finished = cuda.Event()

    def read(self, loss: Tensor) -> None:
        """Copy the loss, and wait for the copy."""
        loss.copy_to_host()
        self._finished.record()
        self._finished.synchronize()


class EarlierStepReader:
    """Waits for the event of an earlier step, as a pipeline of `behind` buffers does."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._marks: deque[cuda.Event] = deque()

    def read(self, loss: Tensor) -> None:
        """Copy the loss; wait for the copy of the step `behind` this one."""
        loss.copy_to_host()
        event = self._marks.popleft() if len(self._marks) > self._behind else cuda.Event()
        event.record()
        self._marks.append(event)
        if len(self._marks) > self._behind:
            self._marks[0].synchronize()
