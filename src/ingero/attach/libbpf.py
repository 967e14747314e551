"""A thin binding of libbpf: objects, maps, programs and links, as resources that close themselves.

Functions and their meaning: libbpf 1.0 `bpf/libbpf.h`. `uprobe.multi` and `uprobe.session` links are made with the
bpf(2) system call (uapi/linux/bpf.h), so that an older libbpf is enough.
"""

from __future__ import annotations

import ctypes as c
import enum
import errno
import logging
import mmap
import os
import platform
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from ingero.errors import IngeroError

logger = logging.getLogger(__name__)

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_BPF_LINK_CREATE = 28
_SONAMES = ("libbpf.so.1",)
_KERNEL_BTF = b"/sys/kernel/btf/vmlinux"
_SYS_ADMIN = 21  # uapi/linux/capability.h


class AttachType(enum.IntEnum):
    """Numbers of `enum bpf_attach_type`."""

    UPROBE_MULTI = 48
    UPROBE_SESSION = 57


class Helper(enum.IntEnum):
    """Numbers of BPF helpers that not every supported kernel has (uapi/linux/bpf.h)."""

    LOOP = 181  # 5.17


_PROGRAM_TYPE_KPROBE = 2  # enum bpf_prog_type; uprobe programs are of this type
_UPROBE_MULTI_IS_RETURN = 1  # BPF_F_UPROBE_MULTI_RETURN


class LibbpfMissingError(IngeroError):
    """libbpf could not be opened."""

    def __init__(self) -> None:
        super().__init__(
            "libbpf.so.1 is not installed",
            hint="apt-get install libbpf1 (Debian 12 and newer, Ubuntu 24.04 and newer)",
        )


class BpfError(IngeroError):
    """The kernel or libbpf refused something; the message ends with what they said."""


_BATCH = 4096  # keys of a hash that are asked for at once
_PTR = c.c_void_p
_PRINT = c.CFUNCTYPE(c.c_int, c.c_int, c.c_char_p, c.c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "bpf_object__open_file": (_PTR, c.c_char_p, _PTR),
    "bpf_object__load": (c.c_int, _PTR),
    "bpf_object__btf": (_PTR, _PTR),
    "bpf_object__close": (None, _PTR),
    "bpf_object__next_map": (_PTR, _PTR, _PTR),
    "bpf_object__next_program": (_PTR, _PTR, _PTR),
    "bpf_object__find_program_by_name": (_PTR, _PTR, c.c_char_p),
    "bpf_map__name": (c.c_char_p, _PTR),
    "bpf_map__fd": (c.c_int, _PTR),
    "bpf_map__value_size": (c.c_uint32, _PTR),
    "bpf_map__key_size": (c.c_uint32, _PTR),
    "bpf_map__max_entries": (c.c_uint32, _PTR),
    "bpf_map__set_max_entries": (c.c_int, _PTR, c.c_uint32),
    "bpf_map__reuse_fd": (c.c_int, _PTR, c.c_int),
    "bpf_map__initial_value": (_PTR, _PTR, c.POINTER(c.c_size_t)),
    "bpf_map_create": (c.c_int, c.c_uint32, c.c_char_p, c.c_uint32, c.c_uint32, c.c_uint32, _PTR),
    "bpf_map_get_next_id": (c.c_int, c.c_uint32, c.POINTER(c.c_uint32)),
    "bpf_map_get_fd_by_id": (c.c_int, c.c_uint32),
    "bpf_obj_get_info_by_fd": (c.c_int, c.c_int, _PTR, c.POINTER(c.c_uint32)),
    "bpf_map_update_elem": (c.c_int, c.c_int, _PTR, _PTR, c.c_uint64),
    "bpf_map_lookup_elem": (c.c_int, c.c_int, _PTR, _PTR),
    "bpf_map_delete_elem": (c.c_int, c.c_int, _PTR),
    "bpf_map_get_next_key": (c.c_int, c.c_int, _PTR, _PTR),
    "bpf_map_lookup_batch": (c.c_int, c.c_int, _PTR, _PTR, _PTR, _PTR, c.POINTER(c.c_uint32), _PTR),
    "bpf_map_lookup_and_delete_elem": (c.c_int, c.c_int, _PTR, _PTR),
    "bpf_program__name": (c.c_char_p, _PTR),
    "bpf_program__section_name": (c.c_char_p, _PTR),
    "bpf_program__fd": (c.c_int, _PTR),
    "bpf_program__set_autoload": (c.c_int, _PTR, c.c_bool),
    "bpf_program__set_type": (c.c_int, _PTR, c.c_int),
    "bpf_program__set_expected_attach_type": (c.c_int, _PTR, c.c_int),
    "bpf_program__attach": (_PTR, _PTR),
    "bpf_program__attach_perf_event": (_PTR, _PTR, c.c_int),
    "bpf_program__attach_iter": (_PTR, _PTR, _PTR),
    "bpf_program__attach_uprobe_opts": (_PTR, _PTR, c.c_int, c.c_char_p, c.c_size_t, _PTR),
    "bpf_link__fd": (c.c_int, _PTR),
    "bpf_link__destroy": (c.c_int, _PTR),
    "bpf_iter_create": (c.c_int, c.c_int),
    "libbpf_set_print": (_PTR, _PRINT),
    "libbpf_num_possible_cpus": (c.c_int,),
    "libbpf_version_string": (c.c_char_p,),
    "libbpf_probe_bpf_helper": (c.c_int, c.c_int, c.c_int, _PTR),
    "btf__load_vmlinux_btf": (_PTR,),
    "btf__find_by_name_kind": (c.c_int, _PTR, c.c_char_p, c.c_uint32),
    "btf__type_by_id": (_PTR, _PTR, c.c_uint32),
    "btf__name_by_offset": (c.c_char_p, _PTR, c.c_uint32),
    "btf__free": (None, _PTR),
}


class _UprobeOptions(c.Structure):
    """struct bpf_uprobe_opts, as far as it is used."""

    _fields_ = (
        ("sz", c.c_size_t),
        ("ref_ctr_offset", c.c_size_t),
        ("bpf_cookie", c.c_uint64),
        ("retprobe", c.c_bool),
        ("func_name", c.c_char_p),
    )


class _Said(threading.local):
    """What libbpf printed in this thread since the last call that may fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []


_said = _Said()


def libbpf_version() -> str:
    """Such as `v1.1`.

    Raises:
        LibbpfMissingError: it is not installed.
    """
    return str(_library().libbpf_version_string().decode())


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


@lru_cache(maxsize=1)
def _library() -> c.CDLL:
    library = next(filter(None, map(_open, _SONAMES)), None)
    if library is None:
        raise LibbpfMissingError
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(_on_print)
    return library


def _open(soname: str) -> c.CDLL | None:
    with suppress(OSError):
        return c.CDLL(soname, use_errno=True)
    return None


def _on_message(level: int, template: bytes, arguments: int) -> int:
    """libbpf's messages: formatted by libc, because `arguments` is a va_list (a pointer on x86-64 and arm64)."""
    if level > 1 and not logger.isEnabledFor(logging.DEBUG):
        return 0  # thousands of them, for each field that is relocated
    buffer = c.create_string_buffer(4096)
    _libc().vsnprintf(buffer, len(buffer), template, c.c_void_p(arguments))
    text = buffer.value.decode(errors="replace").rstrip()
    if level <= 1:
        _said.lines.append(text)
        del _said.lines[:-40]
    logger.debug("libbpf: %s", text)
    return 0


_on_print = _PRINT(_on_message)  # kept here: libbpf calls it for as long as the process lives


@lru_cache(maxsize=1)
def _libc() -> c.CDLL:
    return c.CDLL(None, use_errno=True)


def _failure(what: str, error: int | None = None, hint: str = "") -> BpfError:
    number = c.get_errno() if error is None else abs(error)
    said = "; ".join(line.removeprefix("libbpf: ") for line in _said.lines[-6:])
    _said.lines.clear()
    return BpfError(f"{what}: {os.strerror(number)}{f' ({said})' if said else ''}", hint=hint)


def library_call(name: str, *arguments: Any) -> int:
    """What a function of libbpf answers that says errors as negative numbers.

    Raises:
        OSError: it says one.
        LibbpfMissingError: it is not installed.
    """
    answer = int(getattr(_library(), name)(*arguments))
    if answer < 0:
        raise OSError(-answer, f"{name}: {os.strerror(-answer)}")
    return answer


def possible_cpus() -> int:
    """Number of CPUs this kernel may ever have."""
    return int(_library().libbpf_num_possible_cpus())


class Map:
    """A loaded map, by descriptor."""

    def __init__(self, name: str, fd: int, key_bytes: int, value_bytes: int, max_entries: int) -> None:
        self.name, self.fd = name, fd
        self.key_bytes, self.value_bytes, self.max_entries = key_bytes, value_bytes, max_entries

    def update(self, key: bytes, value: bytes, flags: int = 0) -> None:
        """Sets one element.

        Raises:
            BpfError: the map is full, or the flags forbid it.
        """
        if _library().bpf_map_update_elem(self.fd, key or None, value, flags):
            raise _failure(f"map {self.name}: update")

    def lookup(self, key: bytes) -> bytes | None:
        """One element, or None."""
        value = c.create_string_buffer(self.value_bytes)
        if _library().bpf_map_lookup_elem(self.fd, key, value):
            return None
        return value.raw

    def pop(self) -> bytes | None:
        """Takes the top of a stack or queue; None if it is empty."""
        value = c.create_string_buffer(self.value_bytes)
        if _library().bpf_map_lookup_and_delete_elem(self.fd, None, value):
            return None
        return value.raw

    def push(self, value: bytes) -> None:
        """Puts a value on a stack or queue.

        Raises:
            BpfError: it is full.
        """
        self.update(b"", value)

    def delete(self, key: bytes) -> bool:
        """Removes one element; False if there was none."""
        return not _library().bpf_map_delete_elem(self.fd, key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All elements; elements added or removed meanwhile may or may not be among them."""
        key: bytes | None = None
        next_key = c.create_string_buffer(self.key_bytes)
        while not _library().bpf_map_get_next_key(self.fd, key, next_key):
            key = next_key.raw
            value = self.lookup(key)
            if value is not None:
                yield key, value

    def key_batches(self) -> Iterator[bytes]:
        """The keys of a hash, many in one piece; as for `items`, of what is added or removed meanwhile."""
        keys = c.create_string_buffer(_BATCH * self.key_bytes)
        values = c.create_string_buffer(_BATCH * self.value_bytes)
        place, begin, is_last = c.c_uint32(), None, False
        while not is_last:
            count = c.c_uint32(_BATCH)
            look_up = _library().bpf_map_lookup_batch
            is_last = bool(look_up(self.fd, begin, c.byref(place), keys, values, c.byref(count), None))
            if is_last and c.get_errno() not in (0, errno.ENOENT):
                raise _failure(f"map {self.name}: look up")
            begin = c.byref(place)
            yield keys.raw[: count.value * self.key_bytes]

    def memory(self) -> mmap.mmap:
        """The elements of a BPF_F_MMAPABLE array as shared memory, each rounded up to 8 bytes."""
        size = self.max_entries * (self.value_bytes + 7 & ~7)
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(self.fd, pages, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


class Link:
    """An attached program; closing detaches it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Detaches; a second call does nothing."""
        if self._close is not None:
            close, self._close = self._close, None
            close()


class Program:
    """A loaded program."""

    def __init__(self, name: str, pointer: int) -> None:
        self.name = name
        self._pointer = pointer

    @property
    def fd(self) -> int:
        """Descriptor of the program."""
        return int(_library().bpf_program__fd(self._pointer))

    def attach(self) -> Link:
        """Attaches a tracing program to the event its section names."""
        return self._link(_library().bpf_program__attach(self._pointer), "attach")

    def attach_uprobe(self, path: str, offset: int, cookie: int, *, is_return: bool) -> Link:
        """One perf-event uprobe (needs CAP_SYS_ADMIN; detaching takes 0.1 s each)."""
        options = _UprobeOptions(c.sizeof(_UprobeOptions), 0, cookie, is_return, None)
        link = _library().bpf_program__attach_uprobe_opts(self._pointer, -1, path.encode(), offset, c.byref(options))
        return self._link(link, f"uprobe at {path}+{offset:#x}")

    def attach_uprobes(
        self,
        path: str,
        sites: Sequence[tuple[int, int]],
        attach_type: AttachType,
        *,
        is_return: bool = False,
        pid: int = 0,
    ) -> Link:
        """One link for many (offset, cookie) sites of a file, for all processes or one."""
        offsets = (c.c_uint64 * len(sites))(*(offset for offset, _ in sites))
        cookies = (c.c_uint64 * len(sites))(*(cookie for _, cookie in sites))
        name = c.create_string_buffer(os.fsencode(path))
        flags = _UPROBE_MULTI_IS_RETURN if is_return else 0
        head = struct.pack("<IIII", self.fd, 0, attach_type, 0)
        addresses = (c.addressof(name), c.addressof(offsets), 0, c.addressof(cookies))
        fd = _bpf(_BPF_LINK_CREATE, head + struct.pack("<QQQQIII4x", *addresses, len(sites), flags, pid))
        if fd < 0:
            raise _failure(f"{self.name}: {attach_type.name.lower()} link on {path} with {len(sites)} probes")
        return Link(lambda: os.close(fd))

    def attach_cpu_clock(self, cpu: int, period_ns: int) -> Link:
        """Runs it at each tick of a CPU's clock, unless that idles; the interrupted task is the current one."""
        fd = _open_cpu_clock(cpu, period_ns)
        try:
            return self._link(_library().bpf_program__attach_perf_event(self._pointer, fd), f"clock of CPU {cpu}")
        except BpfError:
            os.close(fd)  # a link owns it
            raise

    def read_iterator(self) -> bytes:
        """Runs an iterator program once and returns all it wrote."""
        library = _library()
        with ExitStack() as stack:
            pointer = library.bpf_program__attach_iter(self._pointer, None)
            if not pointer:
                raise _failure(f"iterator {self.name}")
            stack.callback(library.bpf_link__destroy, pointer)
            fd = library.bpf_iter_create(library.bpf_link__fd(pointer))
            if fd < 0:
                raise _failure(f"iterator {self.name}", fd)
            stack.callback(os.close, fd)
            return b"".join(iter(lambda: os.read(fd, 1 << 18), b""))

    def _link(self, pointer: int | None, what: str) -> Link:
        if not pointer:
            raise _failure(f"{self.name}: {what}")
        return Link(lambda: _destroy(pointer))


def _destroy(pointer: int) -> None:
    _library().bpf_link__destroy(pointer)


# struct perf_event_attr (uapi/linux/perf_event.h): type, size, config, sample_period, sample_type, read_format, flags
_PERF_ATTRIBUTES = struct.Struct("<IIQQQQQ")
_PERF_ATTRIBUTES_BYTES = 128
_PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_CPU_CLOCK = 1, 0
_PERF_EXCLUDE_IDLE = 1 << 7
_PERF_FLAG_CLOSE_ON_EXEC = 1 << 3


def _open_cpu_clock(cpu: int, period_ns: int) -> int:
    head = (_PERF_TYPE_SOFTWARE, _PERF_ATTRIBUTES_BYTES, _PERF_COUNT_SW_CPU_CLOCK, period_ns, 0, 0, _PERF_EXCLUDE_IDLE)
    attributes = c.create_string_buffer(_PERF_ATTRIBUTES.pack(*head), _PERF_ATTRIBUTES_BYTES)
    number = _SYS_PERF_EVENT_OPEN[platform.machine()]
    fd = int(_libc().syscall(number, attributes, -1, cpu, -1, c.c_ulong(_PERF_FLAG_CLOSE_ON_EXEC)))
    if fd < 0:
        raise _failure(f"the clock of CPU {cpu}")
    return fd


def _bpf(command: int, attributes: bytes) -> int:
    buffer = c.create_string_buffer(attributes, 128)
    return int(_libc().syscall(_SYS_BPF[platform.machine()], command, buffer, len(attributes)))


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
        pointer = _library().bpf_object__open_file(os.fsencode(path), options and c.byref(options))
        if not pointer:
            raise _failure(f"{path}", hint="make build")
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
        pointer = _library().bpf_object__find_program_by_name(self._pointer, name.encode())
        if not pointer:
            raise BpfError(f"{self.path.name} has no program {name}", hint="make clean build")
        return Program(name, pointer)

    def sections(self) -> dict[str, str]:
        """Names of all its programs, and the section (event) each is for."""
        library, pointer, found = _library(), None, {}
        while pointer := library.bpf_object__next_program(self._pointer, pointer):
            found[library.bpf_program__name(pointer).decode()] = library.bpf_program__section_name(pointer).decode()
        return found

    def close(self) -> None:
        """Frees the object; links and reused maps live on."""
        if self._pointer is not None:
            _library().bpf_object__close(self._pointer)
            self._pointer = None

    def __enter__(self) -> BpfObject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each_map(self) -> Iterator[tuple[str, int]]:
        pointer = None
        while pointer := _library().bpf_object__next_map(self._pointer, pointer):
            yield _library().bpf_map__name(pointer).decode(), pointer

    def _share(self, shared: Mapping[str, Map], max_entries: Mapping[str, int]) -> None:
        for name, pointer in self._each_map():
            if name in shared:
                if error := _library().bpf_map__reuse_fd(pointer, shared[name].fd):
                    raise _failure(f"{self.path.name}: reuse of map {name}", error)
            elif name in max_entries and (error := _library().bpf_map__set_max_entries(pointer, max_entries[name])):
                raise _failure(f"{self.path.name}: size of map {name}", error)

    def _set_constants(self, constants: Mapping[str, bytes]) -> None:
        if not constants:
            return
        size = c.c_size_t()
        pointer = next(entry for name, entry in self._each_map() if name.endswith(".rodata"))
        base = _library().bpf_map__initial_value(pointer, c.byref(size))
        offsets = _variables(_library().bpf_object__btf(self._pointer), b".rodata")
        for name, value in constants.items():
            if name not in offsets:
                raise BpfError(f"{self.path.name} has no constant {name}", hint="make clean build")
            c.memmove(base + offsets[name], value, len(value))

    def _choose(self, programs: Sequence[str] | None, uprobe_types: Mapping[str, AttachType]) -> None:
        library, pointer = _library(), None
        while pointer := library.bpf_object__next_program(self._pointer, pointer):
            name = library.bpf_program__name(pointer).decode()
            if programs is not None and name not in programs:
                library.bpf_program__set_autoload(pointer, False)
            if name in uprobe_types:
                library.bpf_program__set_type(pointer, _PROGRAM_TYPE_KPROBE)
                library.bpf_program__set_expected_attach_type(pointer, uprobe_types[name])

    def _load(self) -> None:
        _said.lines.clear()
        if error := _library().bpf_object__load(self._pointer):
            raise _failure(f"{self.path.name}: load", error, hint="ingero check tells what this kernel lacks")

    @staticmethod
    def _map(pointer: int) -> Map:
        library = _library()
        return Map(
            library.bpf_map__name(pointer).decode(),
            library.bpf_map__fd(pointer),
            library.bpf_map__key_size(pointer),
            library.bpf_map__value_size(pointer),
            library.bpf_map__max_entries(pointer),
        )


_BTF_KIND_TYPEDEF, _BTF_KIND_DATASEC = 8, 15


@contextmanager
def _kernel_btf() -> Iterator[int]:
    """The kernel's type information, as libbpf's handle."""
    library = _library()
    btf = library.btf__load_vmlinux_btf()
    if not btf:
        raise _failure(
            "kernel BTF", hint="a kernel built with CONFIG_DEBUG_INFO_BTF=y is needed (/sys/kernel/btf/vmlinux)"
        )
    try:
        yield btf
    finally:
        library.btf__free(btf)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTypes:
    """What was asked of the kernel's type information.

    arguments: how many each tracepoint passes to a BPF program. percpu: offsets of per-CPU variables in their section.
    What this kernel does not have is left out.
    """

    arguments: Mapping[str, int]
    percpu: Mapping[str, int]


def kernel_types(*, tracepoints: Sequence[str], percpu: Sequence[str]) -> KernelTypes:
    """Looks them up; reading the kernel's types takes most of the time, so ask for all at once."""
    with _kernel_btf() as btf:
        arguments = {name: count for name in tracepoints if (count := _tracepoint_arguments(btf, name)) is not None}
        variables = _variables(btf, b".data..percpu") or _variables(btf, b".data..percpu..hot")
    return KernelTypes(arguments=arguments, percpu={name: variables[name] for name in percpu if name in variables})


def _tracepoint_arguments(btf: int, name: str) -> int | None:
    library = _library()
    kind = library.btf__find_by_name_kind(btf, f"btf_trace_{name}".encode(), _BTF_KIND_TYPEDEF)
    if kind < 0:
        return None
    pointer = c.c_uint32.from_address(library.btf__type_by_id(btf, kind) + 8).value
    prototype = c.c_uint32.from_address(library.btf__type_by_id(btf, pointer) + 8).value
    information = c.c_uint32.from_address(library.btf__type_by_id(btf, prototype) + 4).value
    return (information & 0xFFFF) - 1  # the first is the tracepoint's own data


def has_helper(helper: Helper) -> bool:
    """Whether uprobe programs may call a helper on this kernel."""
    return int(_library().libbpf_probe_bpf_helper(_PROGRAM_TYPE_KPROBE, helper, None)) == 1


def _variables(btf: int, section: bytes) -> dict[str, int]:
    """Offset of each variable of a data section; none without such a section."""
    library = _library()
    kind = library.btf__find_by_name_kind(btf, section, _BTF_KIND_DATASEC)
    if kind < 0:
        return {}
    at = library.btf__type_by_id(btf, kind)
    count = c.c_uint32.from_address(at + 4).value & 0xFFFF
    found = {}
    for variable, offset, _size in struct.iter_unpack("<III", c.string_at(at + 12, 12 * count)):
        name_at = c.c_uint32.from_address(library.btf__type_by_id(btf, variable)).value
        found[library.btf__name_by_offset(btf, name_at).decode()] = offset
    return found
