"""Data parallel training: one process per rank, gradients summed by NCCL as soon as a layer has them."""

import ctypes
import os
import time
from ctypes import POINTER, c_char, c_int, c_size_t, c_void_p
from pathlib import Path

from ingero.demo.workloads.minitorch.nn import Transformer
from ingero.demo.workloads.minitorch.streams import current_stream
from ingero.demo.workloads.minitorch.watchdog import Watchdog
from ingero.errors import IngeroError

GRADIENT_ELEMENTS = 4 << 20  # of one block: 16 MiB
_FLOAT32 = 7  # ncclDataType_t
_SUM = 0  # ncclRedOp_t


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * 128),)


class NcclError(IngeroError):
    """An NCCL call returned an error; `code` is its ncclResult_t."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with NCCL error {code}", hint="set NCCL_DEBUG=WARN and run again")
        self.code = code


class ProcessGroup:
    """The communicator of `world` ranks that meet through the file `rendezvous` (written by rank 0)."""

    def __init__(self, rank: int, world: int, rendezvous: Path, *, watched: bool = False) -> None:
        self._watchdog = Watchdog() if watched else None
        self._nccl = ctypes.CDLL("libnccl.so.2")
        self._nccl.ncclGetUniqueId.argtypes = (POINTER(_UniqueId),)
        self._nccl.ncclCommInitRank.argtypes = (POINTER(c_void_p), c_int, _UniqueId, c_int)
        self._nccl.ncclAllReduce.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
        self._nccl.ncclCommDestroy.argtypes = (c_void_p,)
        self._communicator = c_void_p()
        identity = self._meet(rank, rendezvous)
        self._check("ncclCommInitRank", ctypes.byref(self._communicator), world, identity, rank)

    def all_reduce(self, elements: int) -> None:
        """Enqueue the sum of a float32 buffer over all ranks on the current stream."""
        self._check("ncclAllReduce", None, None, elements, _FLOAT32, _SUM, self._communicator, current_stream())
        if self._watchdog is not None:
            self._watchdog.add()

    def close(self) -> None:
        """Destroy the communicator."""
        self._check("ncclCommDestroy", self._communicator)

    def _meet(self, rank: int, rendezvous: Path) -> _UniqueId:
        if rank == 0:
            identity = _UniqueId()
            self._check("ncclGetUniqueId", ctypes.byref(identity))
            draft = rendezvous.with_name(f"{rendezvous.name}.{os.getpid()}")
            draft.write_bytes(bytes(identity))
            draft.replace(rendezvous)
            return identity
        while not rendezvous.exists():
            time.sleep(0.01)
        return _UniqueId.from_buffer_copy(rendezvous.read_bytes())

    def _check(self, name: str, *arguments: object) -> None:
        result = getattr(self._nccl, name)(*arguments)
        if result:
            raise NcclError(name, result)


class DistributedDataParallel:
    """Hooks every block of `model` so that its gradients are reduced while earlier blocks still compute theirs."""

    def __init__(self, model: Transformer, group: ProcessGroup) -> None:
        self.group = group
        for block in model.blocks:
            block.on_gradient = self.reduce_bucket

    def reduce_bucket(self) -> None:
        """Enqueue the reduction of one block's gradients."""
        self.group.all_reduce(GRADIENT_ELEMENTS)
