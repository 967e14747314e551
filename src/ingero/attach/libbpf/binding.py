"""libbpf itself, opened through ctypes: its functions, what it prints, and how its failures are reported."""

from __future__ import annotations

import ctypes as c
import errno
import logging
import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ingero.discover.confinement import confinement
from ingero.discover.distribution import this_distribution
from ingero.errors import IngeroError
from ingero.foreign_text import visible

logger = logging.getLogger(__name__)

_VARIABLE = "INGERO_LIBBPF"  # names another one: a distribution's, or somebody's own
_BUNDLED = Path(__file__).parent / "bundled" / "libbpf.so.1"  # of a wheel; a checkout has none
_SONAME = "libbpf.so.1"
_LONGEST_LOG_BYTES = 4 << 20
_SHOWN_CHARACTERS = 4096
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


class LibbpfMissingError(IngeroError):
    """libbpf could not be opened. named: the one that somebody asked for by INGERO_LIBBPF."""

    def __init__(self, named: str = "") -> None:
        if named:
            super().__init__(
                f"{_VARIABLE}={visible(named)} cannot be opened as a library", hint=f"unset {_VARIABLE}, or correct it"
            )
            return
        super().__init__("libbpf.so.1 is not installed", hint=this_distribution().libbpf_fix)


class BpfError(IngeroError):
    """The kernel or libbpf refused something; the message ends with what they said."""


class _Said(threading.local):
    """What libbpf printed in this thread since the last call that may fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []


said = _Said()


@lru_cache(maxsize=1)
def libbpf() -> c.CDLL:
    """The library, opened once: the one that INGERO_LIBBPF names, else the wheel's own, else the distribution's.

    Raises:
        LibbpfMissingError: it is not installed.
    """
    named = os.environ.get(_VARIABLE, "")
    library = next(filter(None, map(_open, (named,) if named else (str(_BUNDLED), _SONAME))), None)
    if library is None:
        raise LibbpfMissingError(named)
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(_on_print)
    return library


@lru_cache(maxsize=1)
def libc() -> c.CDLL:
    """The C library, for system calls and formatting."""
    return c.CDLL(None, use_errno=True)


def failure(what: str, error: int | None = None, hint: str = "") -> BpfError:
    """The error of what failed just now in this thread, with what libbpf said of it. error: None: errno."""
    number = c.get_errno() if error is None else abs(error)
    reasons = "; ".join(line.removeprefix("libbpf: ") for line in said.lines[-6:])
    said.lines.clear()
    bound = confinement() if number in (errno.EPERM, errno.EACCES) else None
    by = f"; the {bound.text} may forbid it" if bound else ""
    return BpfError(
        f"{what}: {os.strerror(number)}{f' ({reasons})' if reasons else ''}{by}", hint=bound.fix if bound else hint
    )


def libbpf_version() -> str:
    """Such as `v1.1`.

    Raises:
        LibbpfMissingError: it is not installed.
    """
    return str(libbpf().libbpf_version_string().decode())


def possible_cpus() -> int:
    """Number of CPUs this kernel may ever have."""
    return int(libbpf().libbpf_num_possible_cpus())


def _open(soname: str) -> c.CDLL | None:
    with suppress(OSError):
        return c.CDLL(soname, use_errno=True)
    return None


def _shortened(text: str) -> str:
    """The begin and the end: a verifier's log ends with its reason."""
    half = _SHOWN_CHARACTERS // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"


def _on_message(level: int, template: bytes, arguments: int) -> int:
    """libbpf's messages: formatted by libc, because `arguments` is a va_list (a pointer on x86-64 and arm64)."""
    if level > 1 and not logger.isEnabledFor(logging.DEBUG):
        return 0  # thousands of them, for each field that is relocated
    buffer = c.create_string_buffer(_LONGEST_LOG_BYTES if level <= 1 else _SHOWN_CHARACTERS)
    libc().vsnprintf(buffer, len(buffer), template, c.c_void_p(arguments))
    text = _shortened(buffer.value.decode(errors="replace").rstrip())
    if level <= 1:
        said.lines.append(text)
        del said.lines[:-40]
    logger.debug("libbpf: %s", text)
    return 0


_on_print = _PRINT(_on_message)  # kept here: libbpf calls it for as long as the process lives


def library_call(name: str, *arguments: Any) -> int:
    """What a function of libbpf answers that says errors as negative numbers.

    Raises:
        OSError: it says one.
        LibbpfMissingError: it is not installed.
    """
    answer = int(getattr(libbpf(), name)(*arguments))
    if answer < 0:
        raise OSError(-answer, f"{name}: {os.strerror(-answer)}")
    return answer
