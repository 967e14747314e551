"""Names as people wrote them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ingero.decode.native import names
from ingero.decode.native.names import demangle, shorten

_FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"


@pytest.mark.parametrize(
    ("symbol", "name", "short"),
    [
        ("main", "main", "main"),
        ("_Z3addPfi", "add(float*, int)", "add"),
        ("_Z25__device_stub__Z3addPfS_iPfS_i", "add(float*, float*, int)", "add"),
        ("_ZL25__device_stub__Z3addPfS_iPfS_i", "add(float*, float*, int)", "add"),
        ("_ZN12_GLOBAL__N_13fooEv", "(anonymous namespace)::foo()", "(anonymous namespace)::foo"),
        ("_ZN3FoolsEi", "Foo::operator<<(int)", "Foo::operator<<"),
        ("_ZN1AclEv", "A::operator()()", "A::operator()"),
        ("_Znwm", "operator new(unsigned long)", "operator new"),
        ("_ZN1A4gemmEv.constprop.0.cold", "A::gemm()", "A::gemm"),
        ("_Z_not_mangled", "_Z_not_mangled", "_Z_not_mangled"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)
def test_a_symbol_has_a_name_and_a_short_one(symbol: str, name: str, short: str) -> None:
    assert (demangle(symbol), shorten(demangle(symbol))) == (name, short)


def test_without_a_library_of_cpp_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_LIBRARIES", ("libnone.so.1",))
    names._demangler.cache_clear()
    demangle.cache_clear()
    try:
        assert demangle("_Z3addPfi") == "_Z3addPfi"
    finally:
        monkeypatch.undo()
        names._demangler.cache_clear()
        demangle.cache_clear()


def test_the_library_is_found_where_nothing_can_be_searched_with() -> None:
    """As in an image without ldconfig and compiler: the sandbox would not start, and no call would be recorded."""
    program = "from ingero.decode.native.names import demangle; print(demangle('_Z3addPfi'))"
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(Path(names.__file__).parents[4])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "add(float*, int)\n"


def test_template_arguments_are_left_out_of_the_short_name() -> None:
    name = demangle(_FILL)
    assert name.startswith("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>")
    assert shorten(name) == "at::native::vectorized_elementwise_kernel<...>"
