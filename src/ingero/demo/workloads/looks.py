"""How a loop looks at its loss: with a wait for the device, behind it, or not at all."""

from collections import deque

from ingero.demo.workloads.minitorch import Tensor, cuda

WAYS = ("stream", "event", "memcpy", "device", "never", "query", "pageable", "behind")


class Looks:
    """Looks in one of WAYS; `never` leaves the pace to the launch queue's depth, `behind` waits for earlier steps."""

    def __init__(self, way: str, behind: int = 1) -> None:
        self.finished = cuda.Event()
        self.behind = behind
        self._marks: deque[cuda.Event] = deque()
        self._look = {
            "stream": Tensor.item,
            "memcpy": Tensor.copy_to_host_blocking,
            "pageable": Tensor.copy_to_ordinary_host,
            "never": Tensor.copy_to_host,
            "event": self.after_event,
            "device": self.after_device,
            "query": self.after_queries,
            "behind": self.after_earlier_step,
        }[way]

    def look(self, loss: Tensor) -> None:
        """Fetch the loss in the chosen way."""
        self._look(loss)

    def after_event(self, loss: Tensor) -> None:
        """Wait for an event behind the copy."""
        loss.copy_to_host()
        self.finished.record()
        self.finished.synchronize()

    def after_device(self, loss: Tensor) -> None:
        """Wait for everything on the device."""
        loss.copy_to_host()
        cuda.synchronize()

    def after_queries(self, loss: Tensor) -> None:
        """Ask until the stream is empty."""
        loss.copy_to_host()
        while not cuda.Stream.default().query():
            pass

    def after_earlier_step(self, loss: Tensor) -> None:
        """Wait for the event of the step so many `behind` this one, as a pipeline of so many buffers does."""
        loss.copy_to_host()
        event = self._marks.popleft() if len(self._marks) > self.behind else cuda.Event()
        event.record()
        self._marks.append(event)
        if len(self._marks) > self.behind:
            self._marks[0].synchronize()
