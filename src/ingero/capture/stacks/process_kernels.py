"""The GPU kernels of one process: what is known of each launched function, and how it comes to a name.

Source: CUDA runtime headers (crt/host_runtime.h): nvcc's host stub carries the kernel's own mangled name.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ingero.capture.stacks.process_stacks import Symbols
from ingero.decode.native.names import shorten
from ingero.decode.native.unwinder import AddressSpace, Module

_MOST_SOURCES = 4  # a handle is made from a handle that is made from a host stub; more is a circle


class NameSource(enum.Enum):
    """How the name of a kernel was learned. The value is shown to users."""

    SYMBOL = "symbol"
    REGISTERED = "registration"
    HANDLE = "handle asked for by name"
    ADDRESS = "address: its file has no symbol there"
    AMBIGUOUS = "unknown: its address was registered for more than one kernel"
    UNTOLD = "unknown: its handle was created before tracing, or its name was dropped"


@dataclass(frozen=True, slots=True)
class KernelName:
    """text: None where the name is not known. library: the file that holds the host stub."""

    text: str | None
    library: str
    source: NameSource

    @property
    def short(self) -> str | None:
        """Without template arguments and parameters."""
        if self.text is None or self.source is NameSource.ADDRESS:
            return self.text
        return shorten(self.text)

    @property
    def is_final(self) -> bool:
        """Whether nothing that may still be on its way would tell more."""
        return self.source in (NameSource.SYMBOL, NameSource.HANDLE, NameSource.AMBIGUOUS)


@dataclass(slots=True)
class _Handle:
    """One kernel that had a handle; name is None, source 0 where not told. told_ns: when, CLOCK_MONOTONIC."""

    told_ns: int
    name: str | None = None
    is_cut: bool = False
    source: int = 0
    source_generation: int = 0


class ProcessKernels:
    """What has been told of one process's kernels, in the order of time."""

    def __init__(self, space: AddressSpace, symbols: Symbols) -> None:
        self._space, self._symbols = space, symbols
        self._registered: dict[int, tuple[str, bool] | None] = {}  # name, is cut; None: for several kernels
        self._handles: dict[tuple[int, int], _Handle] = {}
        self._newest: dict[int, int] = {}  # generation by handle

    def register(self, address: int, name: str, *, is_cut: bool) -> None:
        """__cudaRegisterFunction: the host stub at this address stands for a kernel."""
        told = (name, is_cut)  # made readable only if it is launched: PyTorch registers more than 100,000
        if self._registered.setdefault(address, told) != told:
            self._registered[address] = None

    def name_handle(self, handle: int, generation: int, time_ns: int, name: str, *, is_cut: bool) -> None:
        """A handle was asked for by name, or its name was asked for."""
        told = self._told(handle, generation, time_ns)
        told.name, told.is_cut = name, is_cut

    def make_handle(self, handle: int, generation: int, time_ns: int, source: int) -> None:
        """A handle was asked for by a host address or another handle."""
        told = self._told(handle, generation, time_ns)
        told.source, told.source_generation = source, self._newest.get(source, 0)

    def _told(self, handle: int, generation: int, time_ns: int) -> _Handle:
        self._newest[handle] = generation
        return self._handles.setdefault((handle, generation), _Handle(time_ns))

    def inherit(self, parent: ProcessKernels) -> None:
        """After fork: the same host stubs; handles do not survive it."""
        self._registered = dict(parent._registered)

    def since_ns(self, function: int, generation: int) -> int | None:
        """When a handle became this kernel's, CLOCK_MONOTONIC; None where that was not told."""
        told = self._handles.get((function, generation))
        return told.told_ns if told else None

    def name(self, function: int, generation: int) -> KernelName:
        """The name of a launched function: the address of a host stub, or a handle."""
        return self._name(function, generation, _MOST_SOURCES)

    def _name(self, function: int, generation: int, sources_left: int) -> KernelName:
        told = self._handles.get((function, generation))
        if told and (told.name is None or told.is_cut) and told.source and sources_left:
            found = self._name(told.source, told.source_generation, sources_left - 1)
            if found.source is not NameSource.UNTOLD:
                return found
        if told and told.name is not None:
            return KernelName(self._readable(told.name, told.is_cut), "", NameSource.HANDLE)
        module = self._space.module_at(function) if generation == 0 else None
        if module:
            return self._of_stub(function, module)
        registered = self._registered.get(function) if generation == 0 else None
        if registered is not None:  # any address will do for the runtime: a program may have no stubs
            return KernelName(self._readable(*registered), "", NameSource.REGISTERED)
        return KernelName(None, "", NameSource.UNTOLD)

    def _of_stub(self, address: int, module: Module) -> KernelName:
        if address in self._registered and self._registered[address] is None:
            return KernelName(None, module.name, NameSource.AMBIGUOUS)
        symbol = self._symbols.of(module.image).at(address - module.bias) if module.image else None
        if symbol:
            return KernelName(self._symbols.reader.demangle(symbol.name), module.name, NameSource.SYMBOL)
        registered = self._registered.get(address)
        if registered is not None:
            return KernelName(self._readable(*registered), module.name, NameSource.REGISTERED)
        return KernelName(f"{module.name}+{address - module.bias:#x}", module.name, NameSource.ADDRESS)

    def _readable(self, name: str, is_cut: bool) -> str:
        """Demangled; a name whose end was cut off, and that is none without it, is marked."""
        text = self._symbols.reader.demangle(name)
        return f"{text}…" if is_cut and text == name else text
