"""The GPU kernels of one process, and how each launched function gets its name.

Source: CUDA runtime headers (crt/host_runtime.h): nvcc's host stub carries the kernel's own mangled name.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ingero.capture.stacks.process_stacks import Symbols
from ingero.decode.native.names import shorten
from ingero.decode.native.unwinder import AddressSpace, Module

_MAX_SOURCES = 4  # a handle is made from a handle that is made from a host stub; more is a circle


class NameSource(enum.Enum):
    """How the name of a kernel was learned. The value is shown to users."""

    SYMBOL = "symbol"
    REGISTERED = "registration"
    HANDLE = "handle asked for by name"
    ADDRESS = "address: its file has no symbol there"
    AMBIGUOUS = "unknown: its address was registered for more than one kernel"
    UNKNOWN = "unknown: its handle was created before tracing, or its name was dropped"


@dataclass(frozen=True, slots=True)
class KernelName:
    """The name of a kernel. text: None if not known. library: the file that holds the host stub."""

    text: str | None
    library: str
    source: NameSource

    @property
    def short(self) -> str | None:
        """The name without template arguments and parameters."""
        if self.text is None or self.source is NameSource.ADDRESS:
            return self.text
        return shorten(self.text)

    @property
    def is_final(self) -> bool:
        """Whether no record still on its way could improve the name."""
        return self.source in (NameSource.SYMBOL, NameSource.HANDLE, NameSource.AMBIGUOUS)


@dataclass(slots=True)
class _Handle:
    """One kernel that had a handle; name is None, source 0 if not reported. seen_ns: CLOCK_MONOTONIC."""

    seen_ns: int
    name: str | None = None
    is_cut: bool = False
    source: int = 0
    source_generation: int = 0


class ProcessKernels:
    """Names and handles of one process's kernels, in order of time."""

    def __init__(self, space: AddressSpace, symbols: Symbols) -> None:
        self._space, self._symbols = space, symbols
        self._registered: dict[int, tuple[str, bool] | None] = {}  # name, is cut; None: for several kernels
        self._handles: dict[tuple[int, int], _Handle] = {}
        self._newest: dict[int, int] = {}  # generation by handle

    def register(self, address: int, name: str, *, is_cut: bool) -> None:
        """__cudaRegisterFunction: the host stub at this address stands for a kernel."""
        registered = (name, is_cut)  # made readable only if it is launched: PyTorch registers more than 100,000
        if self._registered.setdefault(address, registered) != registered:
            self._registered[address] = None

    def name_handle(self, handle: int, generation: int, time_ns: int, name: str, *, is_cut: bool) -> None:
        """Notes a handle that was looked up by name, or whose name was queried."""
        entry = self._handle_of(handle, generation, time_ns)
        entry.name, entry.is_cut = name, is_cut

    def make_handle(self, handle: int, generation: int, time_ns: int, source: int) -> None:
        """Notes a handle that was made from a host address or another handle."""
        entry = self._handle_of(handle, generation, time_ns)
        entry.source, entry.source_generation = source, self._newest.get(source, 0)

    def _handle_of(self, handle: int, generation: int, time_ns: int) -> _Handle:
        self._newest[handle] = generation
        return self._handles.setdefault((handle, generation), _Handle(time_ns))

    def inherit(self, parent: ProcessKernels) -> None:
        """Copies the host stubs of the parent after fork; handles do not survive it."""
        self._registered = dict(parent._registered)

    def since_ns(self, function: int, generation: int) -> int | None:
        """When a handle became this kernel's, CLOCK_MONOTONIC; None if not reported."""
        entry = self._handles.get((function, generation))
        return entry.seen_ns if entry else None

    def name(self, function: int, generation: int) -> KernelName:
        """The name of a launched function: the address of a host stub, or a handle."""
        return self._name(function, generation, _MAX_SOURCES)

    def _name(self, function: int, generation: int, sources_left: int) -> KernelName:
        entry = self._handles.get((function, generation))
        if entry and (entry.name is None or entry.is_cut) and entry.source and sources_left:
            found = self._name(entry.source, entry.source_generation, sources_left - 1)
            if found.source is not NameSource.UNKNOWN:
                return found
        if entry and entry.name is not None:
            return KernelName(self._readable(entry.name, entry.is_cut), "", NameSource.HANDLE)
        module = self._space.module_at(function) if generation == 0 else None
        if module:
            return self._of_stub(function, module)
        registered = self._registered.get(function) if generation == 0 else None
        if registered is not None:  # any address will do for the runtime: a program may have no stubs
            return KernelName(self._readable(*registered), "", NameSource.REGISTERED)
        return KernelName(None, "", NameSource.UNKNOWN)

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
        """The demangled name; marked if its end was cut off and it cannot be demangled."""
        text = self._symbols.reader.demangle(name)
        return f"{text}…" if is_cut and text == name else text
