"""Streams and events, and which stream the calling thread enqueues on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ingero.demo.workloads.minitorch import runtime


class _Current(threading.local):
    handle = 0


_current = _Current()


def current_stream() -> int:
    """Return the handle of the stream that this thread enqueues on; 0 is the default stream."""
    return _current.handle


class Stream:
    """A stream of its own; `Stream.default()` is the one that every thread starts with."""

    def __init__(self, handle: int | None = None) -> None:
        create = runtime.library().cudaStreamCreateWithFlags
        self.handle = runtime.new_handle(create, runtime.STREAM_NON_BLOCKING) if handle is None else handle

    @classmethod
    def default(cls) -> "Stream":
        """Return the default stream."""
        return cls(0)

    def synchronize(self) -> None:
        """Wait until everything enqueued here has run."""
        runtime.library().cudaStreamSynchronize(self.handle)

    def query(self) -> bool:
        """Return whether everything enqueued here has run."""
        return bool(runtime.library().cudaStreamQuery(self.handle) == 0)

    def wait_event(self, event: "Event") -> None:
        """Let later work here wait for `event`."""
        runtime.library().cudaStreamWaitEvent(self.handle, event.handle, 0)


class Event:
    """A mark in a stream, without timing."""

    def __init__(self) -> None:
        create = runtime.library().cudaEventCreateWithFlags
        self.handle = runtime.new_handle(create, runtime.EVENT_DISABLE_TIMING)

    def record(self, stream: int | None = None) -> None:
        """Mark the end of the stream, by default of the current one."""
        runtime.library().cudaEventRecord(self.handle, current_stream() if stream is None else stream)

    def query(self) -> bool:
        """Return whether the mark has been reached."""
        return bool(runtime.library().cudaEventQuery(self.handle) == 0)

    def synchronize(self) -> None:
        """Wait until the mark has been reached."""
        runtime.library().cudaEventSynchronize(self.handle)


@contextmanager
def use(stream: Stream) -> Iterator[Stream]:
    """Enqueue on `stream` inside the with-block, in this thread only."""
    before = _current.handle
    _current.handle = stream.handle
    try:
        yield stream
    finally:
        _current.handle = before
