"""Turns the linker's names into those that people wrote: demangled, and short enough for a line."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import lru_cache

# Parts and copies of a function that the compiler made belong to the function.
_PARTS = re.compile(r"(\.(cold|part|constprop|isra|lto_priv|llvm|localalias)(\.\d+)*)+$")
# nvcc's host stub of a kernel: a function whose name holds the mangled name of the kernel.
_STUB = re.compile(r"_ZL?([0-9]{1,9})(__device_stub_)(?=_Z)")
_ANONYMOUS = "(anonymous namespace)"
_OPERATORS = re.compile(r"operator\s*(<=>|<<=|>>=|->\*|<<|>>|<=|>=|->|<|>|\(\))")

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")
_libc = ctypes.CDLL(None)
_libc.free.argtypes, _libc.free.restype = (ctypes.c_void_p,), None

_SIGNS, _PRIVATE = "<>()-=*", "\ue000\ue001\ue002\ue003\ue004\ue005\ue006"
_MASK, _UNMASK = str.maketrans(_SIGNS, _PRIVATE), str.maketrans(_PRIVATE, _SIGNS)


def is_mangled(symbol: str) -> bool:
    """Whether a name is one of C++, which are not read without effort."""
    return _PARTS.sub("", symbol).startswith("_Z")


@lru_cache(maxsize=65536)
def demangle(symbol: str) -> str:
    """The C++ name behind a symbol; other names as they are."""
    whole = _PARTS.sub("", symbol)
    stub = _STUB.match(whole)
    if stub:
        end = stub.end(1) + int(stub.group(1))
        whole = whole[stub.end(2) : end] or whole
    return _demangled(whole) or whole if whole.startswith("_Z") else whole


def _demangled(name: str) -> str:
    """By the C++ library; "" where it knows no such name, or there is none."""
    function = _demangler()
    if function is None:
        return ""
    text = function(name.encode(), None, None, None)
    if not text:
        return ""
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _libc.free(text)


@lru_cache(maxsize=1)
def _demangler() -> Callable[..., int | None] | None:
    """Opened by its name, not searched for: searching takes ldconfig or a compiler, which small containers lack."""
    for library in _LIBRARIES:
        try:
            function = ctypes.CDLL(library)["__cxa_demangle"]
        except (OSError, AttributeError):
            continue
        function.restype, function.argtypes = ctypes.c_void_p, (ctypes.c_char_p, *(ctypes.c_void_p,) * 3)
        return function
    return None


def shorten(name: str) -> str:
    """A demangled name without template arguments, parameters and return type: `ns::kernel<...>`."""
    text, kept, depth = _OPERATORS.sub(_masked, name), [], 0
    index = 0
    while index < len(text):
        letter = text[index]
        if depth == 0 and text.startswith(_ANONYMOUS, index):
            kept.append(_ANONYMOUS)
            index += len(_ANONYMOUS)
            continue
        if letter in "<([{":
            if letter == "(" and depth == 0:
                break
            if letter == "<" and depth == 0:
                kept.append("<...>")
            depth += 1
        elif letter in ">)]}":
            depth -= 1
        elif depth == 0:
            kept.append(letter)
        index += 1
    return _unmasked(_without_return_type("".join(kept)))


def _masked(operator: re.Match[str]) -> str:
    """`operator<<` without signs that look like brackets."""
    return "operator" + operator.group(1).translate(_MASK)


def _unmasked(text: str) -> str:
    return text.translate(_UNMASK)


def _without_return_type(text: str) -> str:
    """What follows the last space that is not inside a name (`(anonymous namespace)`, `operator new`)."""
    guarded = text.replace(_ANONYMOUS, _ANONYMOUS.replace(" ", "\0")).replace("operator ", "operator\0")
    return guarded.rstrip().rsplit(" ", 1)[-1].replace("\0", " ")
