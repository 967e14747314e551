"""The CUDA runtime under its real soname and names, with argument types and errors."""

import ctypes
import functools
import os
from ctypes import POINTER, c_int, c_size_t, c_uint, c_void_p
from typing import Any

from ingero.errors import IngeroError

DEFAULT_SONAME = "libcudart.so.12"
HOST_TO_DEVICE = 1  # enum cudaMemcpyKind
DEVICE_TO_HOST = 2
MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation
NOT_READY = 600  # cudaErrorNotReady: the answer of a query, not a failure
EVENT_DISABLE_TIMING = 2
STREAM_NON_BLOCKING = 1

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaGetDeviceCount": (POINTER(c_int),),
    "cudaSetDevice": (c_int,),
    "cudaMalloc": (POINTER(c_void_p), c_size_t),
    "cudaFree": (c_void_p,),
    "cudaHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cudaFreeHost": (c_void_p,),
    "cudaHostRegister": (c_void_p, c_size_t, c_uint),
    "cudaMemcpy": (c_void_p, c_void_p, c_size_t, c_int),
    "cudaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "cudaMemsetAsync": (c_void_p, c_int, c_size_t, c_void_p),
    "cudaStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaStreamSynchronize": (c_void_p,),
    "cudaStreamQuery": (c_void_p,),
    "cudaStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cudaDeviceSynchronize": (),
    "cudaEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaEventDestroy": (c_void_p,),
    "cudaEventRecord": (c_void_p, c_void_p),
    "cudaEventQuery": (c_void_p,),
    "cudaEventSynchronize": (c_void_p,),
}


class CudaError(IngeroError):
    """A CUDA call returned an error; `code` is its cudaError_t."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(
            f"{call} failed with CUDA error {code}",
            hint="see cudaError_t in the CUDA runtime manual; 35 means that no driver (libcuda.so.1) was found",
        )
        self.code = code


class OutOfMemoryError(CudaError):
    """The device has no memory left, not even after the cached blocks were given back."""


def _raise_on_error(result: int, function: Any, _arguments: tuple[object, ...]) -> int:
    if result in (0, NOT_READY):
        return result
    kind = OutOfMemoryError if result == MEMORY_ALLOCATION else CudaError
    raise kind(function.__name__, result)


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded runtime: the soname in GPUSIM_RUNTIME, else libcudart.so.12, searched like any library.

    It is loaded with RTLD_GLOBAL because the native launch helper resolves cudaLaunchKernel from it.

    Raises:
        IngeroError: the library is not on the search path.
    """
    soname = os.environ.get("GPUSIM_RUNTIME", DEFAULT_SONAME)
    try:
        runtime = ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise IngeroError(
            f"cannot load {soname}: {error}",
            hint="run with the environment of ingero.demo.gpusim.build.environment(), which sets LD_LIBRARY_PATH",
        ) from error
    for name, arguments in _SIGNATURES.items():
        function = getattr(runtime, name)
        function.argtypes = arguments
        function.errcheck = _raise_on_error
    return runtime


def new_handle(create: Any, *arguments: object) -> int:
    """Call a function that stores a pointer through its first argument; return that pointer."""
    handle = c_void_p()
    create(ctypes.byref(handle), *arguments)
    return handle.value or 0
