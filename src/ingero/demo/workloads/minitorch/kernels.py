"""Device functions: registered with the runtime, launched through the tensor or the matrix library."""

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_uint, c_void_p
from pathlib import Path

from ingero.demo.workloads import native
from ingero.demo.workloads.minitorch import runtime
from ingero.demo.workloads.minitorch.streams import current_stream

ONE_WAVE_BLOCKS = 132  # one block per multiprocessor: the kernel runs once its registered duration

_grid = {"blocks": ONE_WAVE_BLOCKS}


def set_waves(count: int) -> None:
    """Let every later launch of the process have `count` times the work, as longer sequences do."""
    _grid["blocks"] = count * ONE_WAVE_BLOCKS


@functools.cache
def _tensor_library() -> ctypes.CDLL:
    runtime.library()  # it resolves cudaLaunchKernel from there
    library = ctypes.CDLL(str(native.build_source(Path(__file__).parent / "miniaten.c", shared=True)))
    library.aten_launch.argtypes = (c_void_p, c_uint, c_void_p)
    library.aten_stub.argtypes, library.aten_stub.restype = (c_char_p, POINTER(c_char_p)), c_void_p
    return library


@functools.cache
def _matrix_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native.build_source(Path(__file__).parent / "miniblas.c", shared=True)))
    library.blas_create.argtypes = (POINTER(c_void_p), c_char_p)
    library.blas_gemm.argtypes = (c_void_p, c_uint, c_void_p)
    return library


def _timed_name(name: str, duration_us: float) -> bytes:
    """The device time travels in the name, the one thing that a real binary and the simulator have in common."""
    return f"{name}#ns={max(1, round(duration_us * 1000))}".encode()


class Kernel:
    """An elementwise or reduction kernel of `duration_us` on the simulated device, launched with cudaLaunchKernel."""

    def __init__(self, name: str, *, duration_us: float) -> None:
        self.name = name
        self._symbol = ctypes.create_string_buffer(8)  # stands for the stub of a kernel that the library has not
        self._device_name = _timed_name(name, duration_us)
        known_as = c_char_p(name.encode())
        stub = _tensor_library().aten_stub(name.encode(), ctypes.byref(known_as))
        self._function = stub or ctypes.addressof(self._symbol)
        # By getattr, because inside a class Python mangles a name that starts with two underscores.
        register = getattr(runtime.library(), "__cudaRegisterFunction")
        register.argtypes = (c_void_p, c_void_p, c_char_p, c_char_p, c_int, *(c_void_p,) * 5)
        register.restype = None
        register(None, self._function, self._device_name, known_as.value, -1, None, None, None, None, None)
        self._launch = _tensor_library().aten_launch

    def launch(self) -> None:
        """Enqueue the kernel on this thread's current stream."""
        result = self._launch(self._function, _grid["blocks"], current_stream())
        if result:
            raise runtime.CudaError(f"cudaLaunchKernel of {self.name}", result)


class Gemm:
    """A matrix product of `duration_us`, launched past the runtime with cuLaunchKernel.

    Raises:
        CudaError: there is no driver, or the calling thread has no context.
    """

    def __init__(self, name: str, *, duration_us: float) -> None:
        self.name = name
        self._function = c_void_p()
        library = _matrix_library()
        result = library.blas_create(ctypes.byref(self._function), _timed_name(name, duration_us))
        if result:
            raise runtime.CudaError(f"loading {name}", result)
        self._launch = library.blas_gemm

    def launch(self) -> None:
        """Enqueue the product on this thread's current stream."""
        result = self._launch(self._function, _grid["blocks"], current_stream())
        if result:
            raise runtime.CudaError(f"cuLaunchKernel of {self.name}", result)
