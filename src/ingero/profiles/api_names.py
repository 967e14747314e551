"""Maps a profiler's names of API calls to traced operations, including versioned names and those of HIP."""

from __future__ import annotations

import re
from functools import cache

from ingero.ops import OPS, Op
from ingero.profiles.model import NO_OP

_VERSION = re.compile(r"_v\d+$")  # Nsight Systems writes cudaLaunchKernel_v7000
_BY_SYMBOL: dict[str, Op] = {symbol: op for op in OPS for symbol in (op.name, *op.symbols)}
# HIP calls that are not the CUDA runtime's name with another prefix (HIP Runtime API reference, 6.x).
_HIP = {
    "hipExtLaunchKernel": "cudaLaunchKernel",
    "hipExtModuleLaunchKernel": "cuLaunchKernel",
    "hipHccModuleLaunchKernel": "cuLaunchKernel",
    "hipModuleLaunchKernel": "cuLaunchKernel",
    "hipModuleLaunchCooperativeKernel": "cuLaunchCooperativeKernel",
    "hipMemcpyWithStream": "cudaMemcpy",
    "hipMemcpyHtoD": "cuMemcpyHtoD",
    "hipMemcpyDtoH": "cuMemcpyDtoH",
    "hipMemcpyDtoD": "cuMemcpyDtoD",
    "hipMemcpyHtoDAsync": "cuMemcpyHtoDAsync",
    "hipMemcpyDtoHAsync": "cuMemcpyDtoHAsync",
    "hipMemcpyDtoDAsync": "cuMemcpyDtoDAsync",
    "hipMemsetD8": "cuMemsetD8",
    "hipMemsetD8Async": "cuMemsetD8Async",
    "hipMemsetD16": "cuMemsetD16",
    "hipMemsetD16Async": "cuMemsetD16Async",
    "hipMemsetD32": "cuMemsetD32",
    "hipMemsetD32Async": "cuMemsetD32Async",
    "hipHostMalloc": "cudaHostAlloc",
    "hipHostFree": "cudaFreeHost",
    "hipDrvLaunchKernelEx": "cuLaunchKernelEx",
    "hipExtMallocWithFlags": "cudaMalloc",
    "hipMemAlloc": "cuMemAlloc",
    "hipMemcpyParam2D": "cuMemcpy2D",
    "hipMemcpyParam2DAsync": "cuMemcpy2DAsync",
    "hipCtxSynchronize": "cuCtxSynchronize",
    "hipModuleLoad": "cuModuleLoad",
    "hipModuleLoadDataEx": "cuModuleLoadDataEx",
    "hipModuleLoadData": "cuModuleLoadData",
    "hipModuleUnload": "cuModuleUnload",
}

_EARLIER = {"cudaLaunch": "cudaLaunchKernel"}  # until CUDA 9


@cache
def op_id(name: str) -> int:
    """The operation's `Op.id`; NO_OP for a call that is not traced."""
    plain = name if name in _BY_SYMBOL else _VERSION.sub("", name)
    if plain.startswith("hip"):
        plain = plain.removesuffix("_spt")  # the default stream is the thread's own
        plain = _HIP.get(plain, f"cuda{plain[3:]}")
    plain = _EARLIER.get(plain, plain)
    op = _BY_SYMBOL.get(plain)
    return op.id if op else NO_OP
