"""Which libbpf is opened: the one that is named, else the wheel's own, else the distribution's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import build_libraries
import pytest

from ingero.attach.libbpf import binding


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are tried, of which none can be opened."""
    tried: list[str] = []
    monkeypatch.setattr(binding, "_open", tried.append)
    monkeypatch.delenv("INGERO_LIBBPF", raising=False)
    binding.libbpf.cache_clear()
    return tried


def test_a_wheels_own_comes_before_the_distributions(opened: list[str]) -> None:
    with pytest.raises(binding.LibbpfMissingError, match=r"libbpf\.so\.1 is not installed"):
        binding.libbpf()
    folder = Path(binding.__file__).parent / "bundled"
    assert opened == [str(folder / "libbpf.so.1"), "libbpf.so.1"]


def test_one_that_is_named_is_the_only_one(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_LIBBPF", "/srv/\x1b[31m/libbpf.so.1")
    with pytest.raises(binding.LibbpfMissingError) as caught:
        binding.libbpf()
    assert opened == ["/srv/\x1b[31m/libbpf.so.1"]
    assert "\x1b" not in str(caught.value)


def test_it_is_opened_where_there_is_one() -> None:
    binding.libbpf.cache_clear()
    assert isinstance(binding.libbpf(), ctypes.CDLL)


def test_a_wheels_own_exports_what_the_binding_looks_up() -> None:
    assert build_libraries.called_names() == list(binding._SIGNATURES)
