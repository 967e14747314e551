"""NCCL linked into another library: found by its symbols, named where they were stripped."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.gpusim import build
from ingero.discover.libraries import LibraryScanner
from ingero.discover.sites import communicator_sites, probe_sites
from ingero.discover.static_nccl import SymbolsMissingError, candidates, identify_static_nccl
from ingero.ops import COMMUNICATOR_CALLS, Library
from tests.integration.nccl_jobs import job_of, ranks, rendezvous
from tests.integration.targets import Simulation, simulation, until
from tests.integration.test_nccl import assert_is_true

# what torch's own code would be: entries of its own, and more than the MiB of code that NCCL alone has
HOST = """
asm(".pushsection .text; .skip 1200000, 0x90; .popsection");
const char text_of_nccl[] = "NCCL_SOCKET_IFNAME";
const char *torch_text(void) { return text_of_nccl; }
"""


def link(folder: Path, *, export: bool) -> Path:
    """libtorch_cuda.so with the simulated NCCL inside; its symbols local unless exported."""
    library = next(one for one in build.LIBRARIES if one.soname == "libnccl.so.2")
    (folder / "host.c").write_text(HOST)
    objects = []
    for source in [*library.sources(), folder / "host.c"]:
        objects.append(folder / f"{source.stem}.static.o")
        subprocess.run([*build.compile_command(library), "-c", "-o", objects[-1], source], check=True)
    path = folder / "libtorch_cuda.so"
    script = folder / "host.map"
    script.write_text("{ global: *nccl*; local: *; };" if export else "{ global: torch_text; local: *; };")
    command = ["gcc", "-shared", "-Wl,--build-id=sha1", f"-Wl,--version-script={script}", "-o", path, *objects]
    subprocess.run([*command, "-lpthread", "-ldl"], check=True)
    return path


def test_local_symbols_give_the_same_calls_as_exports(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    reports = []
    for path in (link(tmp_path / "one", export=True), link(tmp_path / "other", export=False)):
        file = identify_static_nccl(path, path.name)
        assert file is not None
        assert file.library is Library.NCCL
        assert len(communicator_sites(file)) >= len(COMMUNICATOR_CALLS) - 1, "ncclCommGrow is no part of the simulation"
        reports.append({site.op.name for site in probe_sites(file).sites})
    assert reports[0] == reports[1] >= {"ncclAllReduce", "ncclSend", "ncclGroupEnd"}


def test_stripped_of_its_symbols_it_is_named(tmp_path: Path) -> None:
    path = link(tmp_path, export=False)
    subprocess.run(["strip", "--strip-all", path], check=True)
    with pytest.raises(SymbolsMissingError, match="statically"):
        identify_static_nccl(path, path.name)


def test_a_library_without_nccl_is_none_of_its_business(tmp_path: Path) -> None:
    path = simulation(tmp_path).libraries / "libcudart.so.12"
    assert identify_static_nccl(path, "libtorch_cuda.so") is None


LOADER = """
#include <dlfcn.h>
int ncclCommInitRank(void) { return ((int (*)(void))dlsym(dlopen("libnccl.so.2", RTLD_NOW), "ncclCommInitRank"))(); }
"""


def test_functions_that_load_nccl_are_not_nccl(tmp_path: Path) -> None:
    (tmp_path / "stub.c").write_text(LOADER)
    path = tmp_path / "libctranslate2.so.4"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, tmp_path / "stub.c", "-ldl"], check=True)
    assert identify_static_nccl(path, path.name) is None


def test_a_network_plugin_beside_it_hides_nothing() -> None:
    line = b"7f0000000000-7f0000%06x r-xp 00000000 00:01 7                          %s\n"
    maps = line % (0x1000, b"/opt/libcuda.so.1") + line % (0x400000, b"/opt/libtorch_cuda.so")
    plugin, real = line % (0x1000, b"/opt/libnccl-net.so"), line % (0x1000, b"/opt/libnccl.so.2")
    assert [one.path for one in candidates(maps + plugin)] == ["/opt/libtorch_cuda.so"]
    assert list(candidates(maps + real)) == []


def hosted(simulated: Simulation, host: Path) -> Simulation:
    return replace(simulated, environment={**simulated.environment, "NCCL_HOST": str(host)})


def test_the_scanner_finds_it_in_a_process_that_has_no_libnccl(tmp_path: Path) -> None:
    simulated = hosted(simulation(tmp_path, devices=1), link(tmp_path, export=True))
    scanner = LibraryScanner()
    with rendezvous() as meeting, ranks(simulated, "late", 1, meeting) as (program,):
        program.wait_for("at")
        until(lambda: any(program.pid in copy.pids for copy in scanner.scan().copies), "it is found")
        found = [copy for copy in scanner.scan().copies if program.pid in copy.pids]
        kinds = {copy.file.library: Path(copy.mapped_path).name for copy in found}
        assert kinds[Library.NCCL] == "libtorch_cuda.so"


def test_its_calls_are_traced_like_those_of_libnccl(tmp_path: Path) -> None:
    host = link(tmp_path, export=True)
    job = job_of(tmp_path, "makings", 2, host=host)
    assert assert_is_true(job) == {"ncclAllReduce": 6}
