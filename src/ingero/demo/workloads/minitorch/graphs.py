"""CUDA graphs: launches captured once from a stream and replayed with one call."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_int, c_ulonglong, c_void_p

from ingero.demo.workloads.minitorch import runtime
from ingero.demo.workloads.minitorch.streams import current_stream

_THREAD_LOCAL = 1  # enum cudaStreamCaptureMode


class Graph:
    """The CUDA graph of what `work` launches on the current stream, which must not be the default one.

    Raises:
        CudaError: `work` did what cannot be captured, such as waiting for the device.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        library = runtime.library()
        library.cudaStreamBeginCapture.argtypes = (c_void_p, c_int)
        library.cudaStreamEndCapture.argtypes = (c_void_p, POINTER(c_void_p))
        library.cudaGraphInstantiateWithFlags.argtypes = (POINTER(c_void_p), c_void_p, c_ulonglong)
        library.cudaGraphLaunch.argtypes = (c_void_p, c_void_p)
        graph, self._executable = c_void_p(), c_void_p()
        _check("cudaStreamBeginCapture", library.cudaStreamBeginCapture(current_stream(), _THREAD_LOCAL))
        work()
        _check("cudaStreamEndCapture", library.cudaStreamEndCapture(current_stream(), ctypes.byref(graph)))
        made = library.cudaGraphInstantiateWithFlags(ctypes.byref(self._executable), graph, 0)
        _check("cudaGraphInstantiateWithFlags", made)
        self._launch = library.cudaGraphLaunch

    def replay(self) -> None:
        """Enqueue all of it on the current stream."""
        _check("cudaGraphLaunch", self._launch(self._executable, current_stream()))


def _check(call: str, result: int) -> None:
    if result:
        raise runtime.CudaError(call, result)
