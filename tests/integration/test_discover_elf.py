"""discover.elf and discover.sites on libraries that gcc builds: aliases, versions, hash styles, damage."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ingero.discover.elf import ElfFile, UnreadableElfError
from ingero.discover.instructions import FirstInstruction
from ingero.discover.library_files import StubLibraryError, identify
from ingero.discover.library_search import library_copies_on_disk
from ingero.discover.sites import SiteReport, probe_sites
from ingero.ops import OPS, Library

pytestmark = pytest.mark.integration

FUNCTION = "__attribute__((noinline)) int {name}(int a) {{ return a + {value}; }}\n"
TWO = FUNCTION.format(name="cudaMalloc", value=1) + FUNCTION.format(name="cudaFree", value=2)


def build(folder: Path, source: str, *flags: str, name: str = "libcudart.so.12") -> Path:
    path = folder / name
    (folder / "source.c").write_text(source)
    command = ["gcc", "-O1", "-shared", "-fPIC", *flags, "-o", str(path), str(folder / "source.c")]
    subprocess.run(command, check=True)
    return path


def offsets_by_readelf(path: Path) -> dict[str, set[int]]:
    """File offsets of defined functions as binutils sees them, for libraries whose text has vaddr == offset."""
    lines = subprocess.run(
        ["readelf", "--dyn-syms", "-W", path], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = (line.split() for line in lines)
    found: dict[str, set[int]] = {}
    for row in rows:
        if len(row) == 8 and row[3] == "FUNC" and row[6] != "UND":
            found.setdefault(row[7].partition("@")[0], set()).add(int(row[1], 16))
    return found


def functions(path: Path, *names: str) -> dict[str, tuple[int, ...]]:
    with ElfFile(path) as elf:
        return elf.functions(names)


def report(path: Path) -> SiteReport:
    return probe_sites(identify(path))


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_functions_are_found_in_every_hash_style(tmp_path: Path, style: str) -> None:
    path = build(tmp_path, TWO, f"-Wl,--hash-style={style}")
    expected = offsets_by_readelf(path)
    found = functions(path, "cudaMalloc", "cudaFree", "cudaNothing")
    assert {name: set(offsets) for name, offsets in found.items()} == expected


def test_many_symbols_in_one_bucket_are_told_apart(tmp_path: Path) -> None:
    names = [f"f{index}" for index in range(500)]
    path = build(tmp_path, "".join(FUNCTION.format(name=name, value=1) for name in names))
    expected = offsets_by_readelf(path)
    assert {name: set(offsets) for name, offsets in functions(path, *names).items()} == expected


def test_a_stripped_library_shows_its_exports(tmp_path: Path) -> None:
    path = build(tmp_path, TWO, "-s")
    assert set(functions(path, "cudaMalloc", "cudaFree")) == {"cudaMalloc", "cudaFree"}


def test_a_library_without_section_headers_shows_its_exports(tmp_path: Path) -> None:
    path = build(tmp_path, TWO)
    expected = functions(path, "cudaMalloc")
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    path.write_bytes(data)
    assert functions(path, "cudaMalloc") == expected


def test_a_segment_loaded_elsewhere_than_its_offset_is_translated(tmp_path: Path) -> None:
    path = build(tmp_path, TWO, "-Wl,-Ttext-segment=0x200000")
    with ElfFile(path) as elf:
        (offset,) = elf.functions(["cudaMalloc"])["cudaMalloc"]
        assert elf.file_offset(offset + 0x200000) == offset
        assert elf.read_at(offset, 4) != b""
    assert offset < path.stat().st_size


def test_every_version_of_a_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "map").write_text("V1 { global: cudaMalloc; local: *; }; V2 { global: cudaMalloc; } V1;")
    source = (
        FUNCTION.format(name="old", value=1)
        + FUNCTION.format(name="new", value=2)
        + '__asm__(".symver old, cudaMalloc@V1\\n.symver new, cudaMalloc@@V2");'
    )
    path = build(tmp_path, source, f"-Wl,--version-script={tmp_path / 'map'}")
    expected = offsets_by_readelf(path)["cudaMalloc"]
    assert len(expected) == 2
    assert set(functions(path, "cudaMalloc")["cudaMalloc"]) == expected


def test_data_and_imports_and_indirect_functions_are_no_functions(tmp_path: Path) -> None:
    source = """
    int cudaData = 1;
    int puts(const char *);
    static int real(int a) { return a; }
    static int (*resolve(void))(int) { return real; }
    int cudaIndirect(int) __attribute__((ifunc("resolve")));
    int cudaReal(int a) { return puts("x") + cudaIndirect(a); }
    """
    path = build(tmp_path, source)
    assert set(functions(path, "cudaData", "puts", "cudaIndirect", "cudaReal")) == {"cudaReal"}


def test_build_id_and_soname_are_read(tmp_path: Path) -> None:
    path = build(tmp_path, TWO, "-Wl,--build-id=0xabcdef", "-Wl,-soname,libcudart.so.99")
    with ElfFile(path) as elf:
        assert (elf.build_id, elf.soname, elf.machine) == ("abcdef", "libcudart.so.99", "EM_X86_64")


def test_libraries_without_build_id_are_told_apart_by_content(tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    one.mkdir()
    other.mkdir()
    first = build(one, TWO, "-Wl,--build-id=none")
    second = build(other, TWO + "int more(void) { return 3; }", "-Wl,--build-id=none")
    assert identify(first).build.startswith("sha256:")
    assert identify(first).build != identify(second).build


def test_a_library_with_its_own_name_is_judged_by_its_soname(tmp_path: Path) -> None:
    path = build(tmp_path, TWO, "-Wl,-soname,libcudart.so.12", name="mine.so")
    assert identify(path).library is Library.CUDART


def test_a_library_without_a_telling_name_is_judged_by_its_exports(tmp_path: Path) -> None:
    assert identify(build(tmp_path, TWO, name="mine.so")).library is Library.CUDART


@pytest.mark.parametrize("kept_percent", [0, 1, 5, 20, 50])
def test_a_half_written_library_is_one_clear_error(tmp_path: Path, kept_percent: int) -> None:
    path = build(tmp_path, TWO)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * kept_percent // 100])
    with pytest.raises(UnreadableElfError, match="cannot read"):
        functions(path, "cudaMalloc", "cudaFree")


def test_overwritten_tables_never_crash_the_reader(tmp_path: Path) -> None:
    path = build(tmp_path, TWO)
    data = path.read_bytes()
    for start in range(0, 0x1200, 64):
        path.write_bytes(data[:start] + b"\xff" * 64 + data[start + 64 :])
        try:
            functions(path, "cudaMalloc", "cudaFree")
        except UnreadableElfError:
            continue


def test_a_fifo_named_like_a_library_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    subprocess.run(["mkfifo", path], check=True)
    with pytest.raises(UnreadableElfError, match="not a regular file"):
        identify(path)


def test_endbr64_is_skipped(tmp_path: Path) -> None:
    source = "int g(void *); int cudaMalloc(int a) { int b[40]; return g(b) + a; } int g(void *p) { return p != 0; }"
    path = build(tmp_path, source, "-fcf-protection=full", "-fno-omit-frame-pointer")
    (offset,) = functions(path, "cudaMalloc")["cudaMalloc"]
    (site,) = report(path).sites
    assert site.file_offset == offset + 4
    assert site.instruction is FirstInstruction.PUSH


def test_a_single_stepped_site_is_reported(tmp_path: Path) -> None:
    path = build(tmp_path, "int cudaMalloc(int a) { return a + 1; }", "-fcf-protection=none")
    assert [site.symbol for site in report(path).single_stepped] == ["cudaMalloc"]


def test_two_names_of_one_call_at_one_address_are_one_site(tmp_path: Path) -> None:
    source = 'int cuMemAlloc_v2(int a) { return a; } int cuMemAlloc(int) __attribute__((alias("cuMemAlloc_v2")));'
    result = report(build(tmp_path, source, name="libcuda.so.1"))
    assert [site.symbol for site in result.sites] == ["cuMemAlloc_v2"]
    assert [one.symbol for one in result.shared] == ["cuMemAlloc"]


def test_two_versions_of_one_call_are_two_sites(tmp_path: Path) -> None:
    source = FUNCTION.format(name="cuMemAlloc_v2", value=1) + FUNCTION.format(name="cuMemAlloc", value=2)
    result = report(build(tmp_path, source, name="libcuda.so.1"))
    assert {site.symbol for site in result.sites} == {"cuMemAlloc_v2", "cuMemAlloc"}


def test_a_weak_alias_behind_a_profiling_name_is_probed_once(tmp_path: Path) -> None:
    source = 'int pncclSend(int a) { return a; } int ncclSend(int) __attribute__((weak, alias("pncclSend")));'
    result = report(build(tmp_path, source, name="libnccl.so.2"))
    assert [site.symbol for site in result.sites] == ["ncclSend"]


def test_two_calls_that_share_code_are_one_site_and_said(tmp_path: Path) -> None:
    source = 'int cudaMalloc(int a) { return a; } int cudaFree(int) __attribute__((alias("cudaMalloc")));'
    result = report(build(tmp_path, source))
    assert [(one.symbol, one.site.symbol) for one in result.shared] == [("cudaFree", "cudaMalloc")]
    assert "cudaFree" not in {one.op.name for one in result.missing}


def test_the_inner_launch_function_is_never_probed(tmp_path: Path) -> None:
    source = FUNCTION.format(name="__cudaLaunchKernel", value=1) + FUNCTION.format(name="cudaLaunchKernel", value=2)
    assert [site.symbol for site in report(build(tmp_path, source)).sites] == ["cudaLaunchKernel"]


def test_every_row_is_a_site_or_missing_with_its_reason(tmp_path: Path) -> None:
    result = report(build(tmp_path, TWO))
    rows = {op.id for op in OPS if op.library is Library.CUDART}
    assert {site.op.id for site in result.sites} | {one.op.id for one in result.missing} == rows
    assert {site.op.name for site in result.sites} == {"cudaMalloc", "cudaFree"}
    reasons = {one.op.name: one.reason for one in result.missing}
    assert reasons["cudaLaunchKernel"] == "the file does not export cudaLaunchKernel or cudaLaunchKernel_ptsz"


def test_the_cookie_tells_the_per_thread_variant(tmp_path: Path) -> None:
    names = ("cudaLaunchKernel", "cudaLaunchKernel_ptsz")
    source = "".join(FUNCTION.format(name=name, value=len(name)) for name in names)
    plain, per_thread = report(build(tmp_path, source)).sites
    assert plain.cookie != per_thread.cookie
    assert plain.cookie & 0xFF == per_thread.cookie & 0xFF


REAL = "int cuInit(unsigned f) { for (volatile int i = 0; i < 9; i++) f += i * f; return f; }\n"
STUB = "int cuInit(unsigned f) { return 34; }\nint cuLaunchKernel(void) { return 34; }\n"


def a_driver(folder: Path, source: str) -> Path:
    """libcuda.so in a folder, with the name of a driver inside."""
    folder.mkdir(parents=True)
    (folder / "driver.c").write_text(source)
    command = ["gcc", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so"]
    subprocess.run([*command, folder / "driver.c"], check=True)
    return folder / "libcuda.so"


def test_the_stub_that_the_linker_is_given_is_no_driver(tmp_path: Path) -> None:
    stub = a_driver(tmp_path / "cuda-12.4/lib64/stubs", STUB)
    elsewhere = a_driver(tmp_path / "lib", STUB)
    for path in (stub, elsewhere):
        with pytest.raises(StubLibraryError, match="made for linking"):
            identify(path)
    assert library_copies_on_disk(root=tmp_path, environs=[{"LD_LIBRARY_PATH": str(stub.parent)}]) == ()


def test_a_driver_may_have_the_linkers_name(tmp_path: Path) -> None:
    path = a_driver(tmp_path / "usr/lib/wsl/lib", REAL)
    assert identify(path).library is Library.CUDA
    assert path in library_copies_on_disk(root=tmp_path)
