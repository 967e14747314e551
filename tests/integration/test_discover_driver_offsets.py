"""discover.driver_offsets: pointers of cuGetProcAddress, asked in an isolated child, from libraries that gcc builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ingero.discover.driver_offsets import DriverOffsets, driver_offsets
from ingero.discover.library_files import identify
from ingero.discover.sites import Origin, SiteReport, probe_sites

pytestmark = pytest.mark.integration

# A driver whose exported cuLaunchKernel is one function and whose cuGetProcAddress_v2 hands out what PICK says.
DRIVER = r"""
#include <stdint.h>
#include <string.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#define CODE(value) __asm__ volatile("" : : "i"(value))
int cuLaunchKernel(int a) { CODE(1); return a + 1; }
int cuLaunchKernel_ptsz(int a) { CODE(2); return a + 2; }
int cuStreamSynchronize(int a) { CODE(3); return a + 3; }
static __attribute__((noinline, used)) int internal(int a) { CODE(4); return a + 4; }
static __attribute__((noinline, used)) int internal_ptsz(int a) { CODE(5); return a + 5; }
BEFORE
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    *out = 0;
    (void)internal_ptsz;
    PICK
    *status = *out ? 0 : 1;
    return *out ? 0 : 500;
}
"""
EXPORTED = (
    'if (!strcmp(name, "cuLaunchKernel")) *out = flags == 2 ? (void *)cuLaunchKernel_ptsz : (void *)cuLaunchKernel;'
)
INTERNAL = 'if (!strcmp(name, "cuLaunchKernel")) *out = flags == 2 ? (void *)internal_ptsz : (void *)internal;'


def build(folder: Path, pick: str, *flags: str, before: str = "", source: str = DRIVER) -> Path:
    path = folder / "libcuda.so.1"
    code = source.replace("BEFORE", before).replace("PICK", pick)
    (folder / "driver.c").write_text(code)
    options = ["-O1", "-w", "-fcf-protection=none", "-shared", "-fPIC"]
    command = ["gcc", *options, "-o", str(path), str(folder / "driver.c"), *flags]
    subprocess.run(command, check=True)
    return path


def ask(path: Path, timeout_s: float = 60) -> tuple[SiteReport, DriverOffsets]:
    file = identify(path)
    report = probe_sites(file)
    return report, driver_offsets(file, report.sites, timeout_s=timeout_s)


def symbol_offset(path: Path, name: str) -> int:
    lines = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return next(int(line.split()[0], 16) for line in lines if line.split()[-1] == name)


def test_pointers_to_exported_symbols_add_nothing(tmp_path: Path) -> None:
    _, offsets = ask(build(tmp_path, EXPORTED))
    assert offsets.failure == ""
    assert offsets.sites == ()


def test_a_pointer_to_internal_code_is_a_site_of_the_same_call(tmp_path: Path) -> None:
    path = build(tmp_path, INTERNAL)
    _, offsets = ask(path)
    assert {(site.op.name, site.symbol, site.file_offset, site.origin) for site in offsets.sites} == {
        ("cuLaunchKernel", "cuLaunchKernel", symbol_offset(path, "internal"), Origin.ENTRY_POINT),
        ("cuLaunchKernel", "cuLaunchKernel_ptsz", symbol_offset(path, "internal_ptsz"), Origin.ENTRY_POINT),
    }


def test_the_per_thread_pointer_gets_the_per_thread_cookie(tmp_path: Path) -> None:
    _, offsets = ask(build(tmp_path, INTERNAL))
    plain, per_thread = sorted(offsets.sites, key=lambda site: site.symbol)
    assert per_thread.cookie == plain.op.cookie("cuLaunchKernel_ptsz") != plain.cookie


def test_the_report_holds_both_kinds_of_sites(tmp_path: Path) -> None:
    report, offsets = ask(build(tmp_path, INTERNAL))
    merged = offsets.added_to(report)
    assert len(merged.sites) == len(report.sites) + 2
    assert merged.missing == report.missing


def test_a_call_that_only_cugetprocaddress_knows_is_not_missing(tmp_path: Path) -> None:
    report, offsets = ask(build(tmp_path, 'if (!strcmp(name, "cuMemAlloc")) *out = internal;'))
    assert "cuMemAlloc" in {one.op.name for one in report.missing}
    assert "cuMemAlloc" not in {one.op.name for one in offsets.added_to(report).missing}


def test_an_exported_thunk_gives_way_to_the_code_that_it_jumps_to(tmp_path: Path) -> None:
    thunk = '__asm__(".globl cuMemFree_v2\\n.type cuMemFree_v2,@function\\ncuMemFree_v2: jmp internal");'
    path = build(tmp_path, 'if (!strcmp(name, "cuMemFree")) *out = internal;', before=thunk)
    report, offsets = ask(path)
    assert [site.symbol for site in offsets.replaced] == ["cuMemFree_v2"]
    merged = [site for site in offsets.added_to(report).sites if site.op.name == "cuMemFree"]
    assert [site.file_offset for site in merged] == [symbol_offset(path, "internal")]


def test_what_the_driver_does_not_offer_is_counted(tmp_path: Path) -> None:
    _, offsets = ask(build(tmp_path, EXPORTED))
    launches = 2  # cuLaunchKernel of CUDA 4.0 and, per thread, of 7.0
    assert offsets.not_offered == offsets.asked - launches


def test_a_pointer_outside_the_file_is_counted(tmp_path: Path) -> None:
    _, offsets = ask(build(tmp_path, 'if (!strcmp(name, "cuCtxSynchronize")) *out = (void *)strcmp;'))
    assert offsets.outside >= 1
    assert offsets.sites == ()


def test_a_driver_without_cugetprocaddress_says_so(tmp_path: Path) -> None:
    _, offsets = ask(build(tmp_path, "", source="int cuLaunchKernel(int a) { return a; }"))
    assert "exports no cuGetProcAddress" in offsets.failure


def test_the_older_form_of_cugetprocaddress_is_understood(tmp_path: Path) -> None:
    source = """
    static __attribute__((noinline)) int internal(int a) { return a + 4; }
    int cuGetProcAddress(const char *name, void **out, int version, unsigned long flags)
    { *out = internal; return 0; }
    """
    _, offsets = ask(build(tmp_path, "", source=source))
    assert len(offsets.sites) == 1


def test_a_driver_that_wants_cuinit_is_left_alone(tmp_path: Path) -> None:
    _, offsets = ask(build(tmp_path, "return 3;"))
    assert "cuInit" in offsets.failure


def test_a_missing_dependency_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int f(void) { return 1; }")
    dependency = tmp_path / "libnowhere.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", dependency, tmp_path / "empty.c"], check=True)
    path = build(tmp_path, EXPORTED, "-Wl,--no-as-needed", str(dependency), "-Wl,-soname,libcuda.so.1")
    dependency.unlink()
    _, offsets = ask(path)
    assert "libnowhere.so" in offsets.failure


def test_a_library_that_never_returns_is_given_up(tmp_path: Path) -> None:
    before = "__attribute__((constructor)) static void hang(void) { for (;;) pause(); }"
    _, offsets = ask(build(tmp_path, EXPORTED, before=before), timeout_s=2)
    assert offsets.failure == "it did not answer within 2 s"


def test_a_library_that_dies_while_loading_harms_nobody(tmp_path: Path) -> None:
    before = "__attribute__((constructor)) static void die(void) { abort(); }"
    _, offsets = ask(build(tmp_path, EXPORTED, before=before))
    assert "ended with status" in offsets.failure


def test_what_a_library_prints_does_not_disturb_the_answer(tmp_path: Path) -> None:
    before = '__attribute__((constructor)) static void talk(void) { write(1, "{}", 2); write(2, "x", 1); }'
    _, offsets = ask(build(tmp_path, INTERNAL, before=before))
    assert len(offsets.sites) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, or there is nothing to give up")
@pytest.mark.parametrize(
    "power",
    [
        "getuid() == 0",
        "setuid(0) == 0",
        "fork() >= 0",
        'open("/etc/passwd", O_RDONLY) >= 0',
        'open("/proc/self/maps", O_RDONLY) >= 0',
        'open("/new", O_WRONLY | O_CREAT, 0600) >= 0',
    ],
)
def test_the_code_of_a_library_has_no_power(tmp_path: Path, power: str) -> None:
    before = f"static int had; __attribute__((constructor)) static void look(void) {{ had = {power}; }}"
    pick = 'if (!strcmp(name, "cuLaunchKernel")) *out = had ? (void *)strcmp : (void *)internal;'
    _, offsets = ask(build(tmp_path, pick, before=before))
    assert offsets.failure == ""
    assert (len(offsets.sites), offsets.outside) == (1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, or there is nothing to give up")
def test_a_library_in_a_closed_folder_can_be_asked(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = build(tmp_path, INTERNAL)
    path.chmod(0o600)
    _, offsets = ask(path)
    assert len(offsets.sites) == 2


def test_a_deleted_library_can_be_asked_through_a_process_that_maps_it(tmp_path: Path) -> None:
    path = build(tmp_path, INTERNAL)
    with path.open("rb") as file:
        path.unlink()
        deleted = identify(Path(f"/proc/self/fd/{file.fileno()}"), name="libcuda.so.1")
        offsets = driver_offsets(deleted, probe_sites(deleted).sites)
    assert len(offsets.sites) == 2


def test_another_library_is_not_asked(tmp_path: Path) -> None:
    path = build(tmp_path, EXPORTED).rename(tmp_path / "libcudart.so.12")
    assert "is not libcuda" in driver_offsets(identify(path), ()).failure
