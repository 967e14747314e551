"""The built libraries look like the real ones from outside."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import build_gpusim
import pytest
from elftools.elf.elffile import ELFFile

from ingero.demo.gpusim import build
from tests.unit.gpusim_fixtures import gpusim_lib

EVERY_LIBRARY = pytest.mark.parametrize("library", build.LIBRARIES, ids=lambda library: library.soname)
EVERY_RUNTIME = pytest.mark.parametrize("soname", build.RUNTIME_SONAMES.values())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        yield ELFFile(file)


def _exports(elf: Any) -> dict[str, Any]:
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    return {symbol.name: symbol for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_size"]}


@EVERY_LIBRARY
def test_exports_exactly_the_names_of_the_real_library(gpusim_lib: Path, library: build.Library) -> None:
    with _opened(gpusim_lib / library.soname) as elf:
        assert sorted(_exports(elf)) == sorted(library.names())


@EVERY_LIBRARY
def test_has_the_soname_of_the_real_library(gpusim_lib: Path, library: build.Library) -> None:
    with _opened(gpusim_lib / library.soname) as elf:
        tags = elf.get_section_by_name(".dynamic").iter_tags("DT_SONAME")
        assert [tag.soname for tag in tags] == [library.soname]


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not here")
def test_clang_builds_the_same_where_there_is_no_gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {name: shutil.which(name) for name in ("clang", "nm")}
    monkeypatch.setattr("ingero.demo.c_compiler.shutil.which", programs.get)
    made = build.build(tmp_path / "built")
    for library in build.LIBRARIES:
        with _opened(made / library.soname) as elf:
            exports = _exports(elf)
            assert sorted(exports) == sorted(library.names())
            code = elf.get_section_by_name(".text")
            first = {code.data()[symbol["st_value"] - code["sh_addr"]] for symbol in exports.values()}
            assert platform.machine() != "x86_64" or first == {0x90}, "a probe is as cheap there"


@EVERY_RUNTIME
def test_a_runtime_has_one_version_node_named_after_itself(gpusim_lib: Path, soname: str) -> None:
    with _opened(gpusim_lib / soname) as elf:
        versions = [next(names).name for _, names in elf.get_section_by_name(".gnu.version_d").iter_versions()]
    assert versions == [soname, soname]  # the base entry and the node


@EVERY_LIBRARY
@pytest.mark.skipif(platform.machine() != "x86_64", reason="checks an x86 instruction")
def test_every_exported_function_begins_with_a_nop(gpusim_lib: Path, library: build.Library) -> None:
    with _opened(gpusim_lib / library.soname) as elf:
        code = elf.get_section_by_name(".text")
        first = {name: symbol["st_value"] - code["sh_addr"] for name, symbol in _exports(elf).items()}
        others = {name for name, offset in first.items() if code.data()[offset] != 0x90}
    assert others == set()


def test_an_nccl_name_is_a_weak_alias_of_its_profiling_name(gpusim_lib: Path) -> None:
    with _opened(gpusim_lib / "libnccl.so.2") as elf:
        exports = _exports(elf)
    pairs = [(exports[name], exports[f"p{name}"]) for name in exports if f"p{name}" in exports]
    assert len(pairs) > 90
    assert all(name["st_value"] == profiling["st_value"] for name, profiling in pairs)
    assert {name["st_info"]["bind"] for name, _ in pairs} == {"STB_WEAK"}


@EVERY_LIBRARY
@pytest.mark.usefixtures("gpusim_lib")
def test_the_sources_compile_without_warnings(library: build.Library) -> None:
    # A simulated call ignores most of its arguments.
    strict = ["-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    sources = [str(source) for source in library.sources()]
    command = [*build.compile_command(library), *strict, *sources]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_an_unchanged_source_is_not_built_again(gpusim_lib: Path) -> None:
    before = (gpusim_lib / "libcuda.so.1").stat().st_mtime_ns
    assert build.build() == gpusim_lib
    assert (gpusim_lib / "libcuda.so.1").stat().st_mtime_ns == before


def test_a_machine_without_gcc_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="gcc") as error:
        build.build(tmp_path / "lib")
    assert "apt-get install gcc" in error.value.hint
    assert "pip install 'ingero[demo]'" in error.value.hint


@EVERY_LIBRARY
def test_what_is_looked_for_in_prebuilt_libraries_is_so_in_built_ones(gpusim_lib: Path, library: build.Library) -> None:
    path = gpusim_lib / library.soname
    assert list(build_gpusim.library_faults(path, library)) == []
    found = list(build_gpusim.file_faults(path, platform.machine()))
    assert [fault for fault in found if "needs glibc" not in fault] == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="checks an x86 instruction")
def test_a_prebuilt_library_with_dear_probes_and_another_export_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int dear(void) { return 1; }\n")
    path = tmp_path / "libnccl.so.2"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-fcf-protection=branch", "-o", path, tmp_path / "a.c"]
    subprocess.run(command, check=True)
    [nccl] = [library for library in build.LIBRARIES if library.soname == path.name]
    faults = [*build_gpusim.library_faults(path, nccl), *build_gpusim.file_faults(path, "x86_64")]
    assert [fault.partition(": ")[2].partition(":")[0] for fault in faults] == [
        "its soname is []",
        "exported, or not, unlike the real library",
        "begin with neither nop nor push",
    ]


def test_the_environment_names_only_what_was_asked_for(gpusim_lib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert build.environment(gpusim_lib, sched="block", runtime="13") == {
        "LD_LIBRARY_PATH": f"{gpusim_lib}:/elsewhere",
        "GPUSIM_LIB": str(gpusim_lib),
        "GPUSIM_SCHED": "block",
        "GPUSIM_RUNTIME": str(gpusim_lib / "libcudart.so.13"),
    }
