"""The backward pass: recorded operations run in reverse, in the caller or in a device thread of its own."""

import queue
import threading

from ingero.demo.workloads.minitorch import cuda, naming, streams
from ingero.demo.workloads.minitorch.tensor import Node, Tensor

THREAD_NAME = "pt_autograd_0"


class Engine:
    """Runs backward passes; with `threaded`, in a second launching thread, as torch does for each device."""

    def __init__(self, *, threaded: bool) -> None:
        self._ready: queue.SimpleQueue[tuple[Node | None, int]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threaded = threaded
        if threaded:
            threading.Thread(target=self._thread_main, name=THREAD_NAME, daemon=True).start()

    def backward(self, loss: Tensor) -> None:
        """Launch the gradients of everything that led to `loss`; return when all are enqueued."""
        root, loss.grad_fn = loss.grad_fn, None
        if not self._threaded:
            evaluate(root)
            return
        self._ready.put((root, streams.current_stream()))
        error = self._done.get()
        if error is not None:
            raise error

    def _thread_main(self) -> None:
        naming.name_this_thread(THREAD_NAME)
        cuda.enter()
        while True:
            root, stream = self._ready.get()
            failure: BaseException | None = None
            try:
                with streams.use(streams.Stream(stream)):
                    evaluate(root)
            except BaseException as error:  # raised again in the caller of backward()
                failure = error
            root = None
            self._done.put(failure)


def evaluate(node: Node | None) -> None:
    """Run the recorded operations from the newest to the oldest."""
    while node is not None:
        node.apply()
        node = node.before
