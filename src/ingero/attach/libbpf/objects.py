"""BPF object files: opened, configured, loaded."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from ingero.attach.libbpf.binding import BpfError, failure, libbpf, said
from ingero.attach.libbpf.features import PROGRAM_TYPE_KPROBE, variables
from ingero.attach.libbpf.maps import Map
from ingero.attach.libbpf.programs import AttachType, Program
from ingero.program import command

_KERNEL_BTF = b"/sys/kernel/btf/vmlinux"
_SYS_ADMIN = 21  # uapi/linux/capability.h


class BpfObject:
    """One `.bpf.o` file, opened, configured, loaded; closing unloads what nothing else holds.

    Args:
        shared: maps of other objects by name; a map of the same name here becomes that map.
        constants: values of `const volatile` globals by name, as bytes.
        max_entries: sizes of maps by name.
        programs: names of the programs to load (None: all), so that one failing program does not fail the object.
        uprobe_type: expected attach type of the programs in section `uprobe`; None for perf-event uprobes.

    Raises:
        BpfError: the file does not open or the kernel refuses it; the verifier's last lines are in the message.
    """

    def __init__(
        self,
        path: Path,
        *,
        shared: Mapping[str, Map] | None = None,
        constants: Mapping[str, bytes] | None = None,
        max_entries: Mapping[str, int] | None = None,
        programs: Sequence[str] | None = None,
        uprobe_types: Mapping[str, AttachType] | None = None,
    ) -> None:
        self.path = path
        options = _open_options()
        pointer = libbpf().bpf_object__open_file(os.fsencode(path), options and c.byref(options))
        if not pointer:
            raise failure(f"{path}", hint="make build")
        self._pointer: int | None = pointer
        try:
            self._share(shared or {}, max_entries or {})
            self._set_constants(constants or {})
            self._choose(programs, uprobe_types or {})
            self._load()
        except BaseException:
            self.close()
            raise
        self.maps = {name: self._map(entry) for name, entry in self._each_map()}

    def program(self, name: str) -> Program:
        """A program by its C name."""
        pointer = libbpf().bpf_object__find_program_by_name(self._pointer, name.encode())
        if not pointer:
            raise BpfError(f"{self.path.name} has no program {name}", hint="make clean build")
        return Program(name, pointer)

    def sections(self) -> dict[str, str]:
        """Names of all its programs, and the section (event) each is for."""
        library, pointer, found = libbpf(), None, {}
        while pointer := library.bpf_object__next_program(self._pointer, pointer):
            found[library.bpf_program__name(pointer).decode()] = library.bpf_program__section_name(pointer).decode()
        return found

    def close(self) -> None:
        """Frees the object; links and reused maps live on."""
        if self._pointer is not None:
            libbpf().bpf_object__close(self._pointer)
            self._pointer = None

    def __enter__(self) -> BpfObject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each_map(self) -> Iterator[tuple[str, int]]:
        pointer = None
        while pointer := libbpf().bpf_object__next_map(self._pointer, pointer):
            yield libbpf().bpf_map__name(pointer).decode(), pointer

    def _share(self, shared: Mapping[str, Map], max_entries: Mapping[str, int]) -> None:
        for name, pointer in self._each_map():
            if name in shared:
                if error := libbpf().bpf_map__reuse_fd(pointer, shared[name].fd):
                    raise failure(f"{self.path.name}: reuse of map {name}", error)
            elif name in max_entries and (error := libbpf().bpf_map__set_max_entries(pointer, max_entries[name])):
                raise failure(f"{self.path.name}: size of map {name}", error)

    def _set_constants(self, constants: Mapping[str, bytes]) -> None:
        if not constants:
            return
        size = c.c_size_t()
        pointer = next(entry for name, entry in self._each_map() if name.endswith(".rodata"))
        base = libbpf().bpf_map__initial_value(pointer, c.byref(size))
        offsets = variables(libbpf().bpf_object__btf(self._pointer), b".rodata")
        for name, value in constants.items():
            if name not in offsets:
                raise BpfError(f"{self.path.name} has no constant {name}", hint="make clean build")
            c.memmove(base + offsets[name], value, len(value))

    def _choose(self, programs: Sequence[str] | None, uprobe_types: Mapping[str, AttachType]) -> None:
        library, pointer = libbpf(), None
        while pointer := library.bpf_object__next_program(self._pointer, pointer):
            name = library.bpf_program__name(pointer).decode()
            if programs is not None and name not in programs:
                library.bpf_program__set_autoload(pointer, False)
            if name in uprobe_types:
                library.bpf_program__set_type(pointer, PROGRAM_TYPE_KPROBE)
                library.bpf_program__set_expected_attach_type(pointer, uprobe_types[name])

    def _load(self) -> None:
        said.lines.clear()
        if error := libbpf().bpf_object__load(self._pointer):
            raise failure(f"{self.path.name}: load", error, hint=f"`{command('check')}` shows what this kernel lacks")

    @staticmethod
    def _map(pointer: int) -> Map:
        library = libbpf()
        return Map(
            library.bpf_map__name(pointer).decode(),
            library.bpf_map__fd(pointer),
            library.bpf_map__key_size(pointer),
            library.bpf_map__value_size(pointer),
            library.bpf_map__max_entries(pointer),
        )


class _OpenOptions(c.Structure):
    """struct bpf_object_open_opts of libbpf 1.0, up to what is set."""

    _fields_ = (
        ("sz", c.c_size_t),
        ("object_name", c.c_char_p),
        ("relaxed_maps", c.c_bool),
        ("pin_root_path", c.c_char_p),
        ("reserved", c.c_uint32),
        ("kconfig", c.c_char_p),
        ("btf_custom_path", c.c_char_p),
    )


@lru_cache(maxsize=1)
def _open_options() -> _OpenOptions | None:
    """Without CAP_SYS_ADMIN the types of modules cannot be listed, where libbpf looks for a type that vmlinux lacks.

    Told which file to use, it does not look there. Not always: it then reads the kernel's types twice.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    capabilities = int(status.partition("CapEff:")[2].split(maxsplit=1)[0], 16)
    if capabilities >> _SYS_ADMIN & 1:
        return None
    return _OpenOptions(sz=c.sizeof(_OpenOptions), btf_custom_path=_KERNEL_BTF)
