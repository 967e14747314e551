"""discover.sites on the real CUDA runtime libraries, as the wheels ship them: every exported row gets its sites."""

from __future__ import annotations

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from ingero.discover.entry_points import entry_points, traced_driver_calls
from ingero.discover.library_files import LibraryFile, identify
from ingero.discover.linked_libraries import identify_linked
from ingero.discover.sites import SiteReport, probe_sites
from ingero.ops import OPS, Library

pytestmark = pytest.mark.integration

GENERATOR = Path(__file__).parents[2] / "tools/gen_driver_entry_points.py"
WHEELS = {
    "11.8": "nvidia-cuda-runtime-cu11==11.8.89",
    "12.9": "nvidia-cuda-runtime-cu12==12.9.79",
    "13.5": "nvidia-cuda-runtime==13.5.37",
}


@pytest.fixture(scope="module", params=sorted(WHEELS))
def wheel(request: pytest.FixtureRequest) -> Path:
    """The unpacked wheel; downloaded once (7 MB in all) and kept in pytest's cache."""
    return unpacked(request, str(request.param))


def unpacked(request: pytest.FixtureRequest, version: str) -> Path:
    folder = Path(request.config.cache.mkdir("cuda-wheels")) / version
    if not (folder / "nvidia").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*command, "--dest", folder, WHEELS[version]], check=True)
        (archive,) = folder.glob("*.whl")
        zipfile.ZipFile(archive).extractall(folder)
    return folder


@pytest.fixture(scope="module", params=sorted(WHEELS)[1:])  # that of 11.8 has none
def archive(request: pytest.FixtureRequest) -> Path:
    """The runtime as nvcc links it into programs by default."""
    (path,) = unpacked(request, str(request.param)).rglob("libcudart_static.a")
    return path


@pytest.fixture(scope="module")
def library(wheel: Path) -> LibraryFile:
    (path,) = wheel.rglob("libcudart.so.*")
    return identify(path)


@pytest.fixture(scope="module")
def report(library: LibraryFile) -> SiteReport:
    return probe_sites(library)


def exported_functions(path: Path) -> dict[str, int]:
    """name -> address of every exported function, read by walking the whole table (not by its hashes)."""
    with path.open("rb") as file:
        table: Any = ELFFile(file).get_section_by_name(".dynsym")
        symbols = list(table.iter_symbols())
    return {
        symbol.name: symbol["st_value"]
        for symbol in symbols
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
    }


def test_every_exported_variant_of_every_row_is_a_site(library: LibraryFile, report: SiteReport) -> None:
    exported = exported_functions(library.path)
    expected = {symbol for op in OPS if op.library is Library.CUDART for symbol in op.symbols if symbol in exported}
    assert len(expected) > 50
    assert {site.symbol for site in report.sites} == expected


def test_every_site_is_at_its_symbol(library: LibraryFile, report: SiteReport) -> None:
    exported = exported_functions(library.path)
    with library.path.open("rb") as file:
        segments = [segment for segment in ELFFile(file).iter_segments("PT_LOAD") if segment["p_flags"] & 1]
    (code,) = segments
    delta = code["p_vaddr"] - code["p_offset"]
    assert {site.symbol: site.file_offset + delta for site in report.sites} == {
        site.symbol: exported[site.symbol] for site in report.sites
    }


def test_a_row_is_missing_only_if_none_of_its_names_is_exported(library: LibraryFile, report: SiteReport) -> None:
    exported = exported_functions(library.path)
    for one in report.missing:
        assert not set(one.op.symbols) & set(exported), one.op.name


def test_nothing_is_single_stepped_and_nothing_shares_code(report: SiteReport) -> None:
    assert report.single_stepped == ()
    assert report.shared == ()


def test_the_build_id_names_the_build(library: LibraryFile) -> None:
    assert len(library.build) == 40


def test_the_list_of_driver_entry_points_covers_this_release(wheel: Path) -> None:
    entry_points_in = runpy.run_path(str(GENERATOR))["entry_points_in"]
    (header,) = wheel.rglob("cudaTypedefs.h")
    named = entry_points_in(header.read_text(errors="replace"))
    assert {name for name, _, _ in named} <= set(traced_driver_calls())
    assert named <= {(point.name, point.version, point.suffix or "-") for point in entry_points()}


PROGRAM = "int cudaMalloc(void **, unsigned long); int main(void) { void *block; return cudaMalloc(&block, 1); }"


def test_the_runtime_inside_a_program_has_the_sites_of_the_one_beside_it(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    program = tmp_path / "program"
    subprocess.run(["gcc", "-o", program, tmp_path / "main.c", archive, "-ldl", "-lpthread", "-lrt"], check=True)
    (shared,) = archive.parent.glob("libcudart.so.*")
    (linked,) = identify_linked(program, program.name).files
    assert linked.library is Library.CUDART
    assert {site.symbol for site in probe_sites(linked).sites} >= {
        site.symbol for site in probe_sites(identify(shared)).sites
    }
    subprocess.run(["strip", program], check=True)
    assert identify_linked(program, program.name).stripped == {Library.CUDART}
