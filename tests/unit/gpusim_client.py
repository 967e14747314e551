"""A small ctypes client of the simulated CUDA libraries, for the programs that the tests run in child processes."""

import ctypes as c
import os
from pathlib import Path

PLUG_NS = 400_000_000  # keeps a stream busy while a test enqueues what it measures

MS = 1_000_000
_keep: list[object] = []


class Dim3(c.Structure):
    _fields_ = (("x", c.c_uint), ("y", c.c_uint), ("z", c.c_uint))


runtime = c.CDLL(os.environ["GPUSIM_RUNTIME"])
_LAUNCH = [c.c_void_p, Dim3, Dim3, c.c_void_p, c.c_size_t, c.c_void_p]
runtime.cudaLaunchKernel.argtypes = _LAUNCH
runtime.cudaLaunchKernel_ptsz.argtypes = _LAUNCH
runtime.cudaMalloc.argtypes = [c.c_void_p, c.c_size_t]
runtime.cudaMemcpy.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_int]
runtime.cudaMemcpyAsync.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_int, c.c_void_p]
for _name in ("cudaFree", "cudaStreamSynchronize", "cudaStreamSynchronize_ptsz", "cudaEventSynchronize"):
    getattr(runtime, _name).argtypes = [c.c_void_p]
runtime.cudaEventRecord.argtypes = [c.c_void_p, c.c_void_p]
runtime.cudaStreamWaitEvent.argtypes = [c.c_void_p, c.c_void_p, c.c_uint]
runtime.cudaEventElapsedTime.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p]
runtime.cudaStreamBeginCapture.argtypes = [c.c_void_p, c.c_int]
runtime.cudaStreamEndCapture.argtypes = [c.c_void_p, c.c_void_p]
runtime.cudaGraphInstantiateWithFlags.argtypes = [c.c_void_p, c.c_void_p, c.c_ulonglong]
runtime.cudaGraphLaunch.argtypes = [c.c_void_p, c.c_void_p]


def driver() -> c.CDLL:
    return c.CDLL(str(Path(os.environ["GPUSIM_LIB"]) / "libcuda.so.1"))


def check(error: int) -> None:
    assert error == 0, f"CUDA error {error}"


def kernel(ns: int, name: str = "kernel") -> int:
    """Register a kernel that takes `ns` on the GPU, as compiled programs do when they start."""
    host = c.create_string_buffer(8)
    full = f"{name}#ns={ns}".encode()
    _keep.extend((host, full))
    register = runtime["__cudaRegisterFunction"]
    register.argtypes = [c.c_void_p, c.c_void_p, c.c_char_p, c.c_char_p, c.c_int, *[c.c_void_p] * 5]
    register(None, c.addressof(host), full, name.encode(), -1, None, None, None, None, None)
    return c.addressof(host)


def launch(function: int, stream: int | None = None, *, per_thread: bool = False) -> None:
    call = runtime.cudaLaunchKernel_ptsz if per_thread else runtime.cudaLaunchKernel
    check(call(function, Dim3(1, 1, 1), Dim3(32, 1, 1), None, 0, stream))


def stream(flags: int = 1) -> int | None:
    handle = c.c_void_p()
    check(runtime.cudaStreamCreateWithFlags(c.byref(handle), flags))
    return handle.value


def recorded_event(where: int | None = None) -> int | None:
    handle = c.c_void_p()
    check(runtime.cudaEventCreate(c.byref(handle)))
    check(runtime.cudaEventRecord(handle, where))
    return handle.value


def elapsed_ns(start: int | None, end: int | None) -> int:
    """Device time between two events, to the microsecond that the float of the interface resolves."""
    check(runtime.cudaEventSynchronize(end))
    ms = c.c_float()
    check(runtime.cudaEventElapsedTime(c.byref(ms), start, end))
    return round(ms.value * 1000) * 1000


def malloc(size: int) -> tuple[int, int | None]:
    """Return (error, address)."""
    address = c.c_void_p()
    return runtime.cudaMalloc(c.byref(address), size), address.value
