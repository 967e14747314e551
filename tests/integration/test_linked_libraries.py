"""NCCL and the CUDA runtime linked into another file: found by its symbols, named where they were stripped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ingero import open_recording
from ingero.demo.gpusim import build
from ingero.demo.workloads.program import Program
from ingero.discover.libraries import LibraryScanner
from ingero.discover.library_files import TEXT_OF, LibraryFile, NotATracedLibraryError, identify_all
from ingero.discover.linked_libraries import candidates, identify_linked, wanted_libraries
from ingero.discover.sites import communicator_sites, probe_sites
from ingero.ops import COMMUNICATOR_CALLS, Library
from tests.integration.nccl_jobs import job_of, ranks, rendezvous
from tests.integration.targets import Simulation, rows, simulation, until, wait_for_end
from tests.integration.test_nccl import assert_is_true
from tests.integration.tracing import Tracer, tracing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU"),
]

# what torch's own code would be: entries of its own, and more than the MiB of code that NCCL alone has
HOST = """
asm(".pushsection .text; .skip 1200000, 0x90; .popsection");
const char text_of_nccl[] = "NCCL_SOCKET_IFNAME";
const char *torch_text(void) { return text_of_nccl; }
"""
PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>
asm(".pushsection .text; .skip 1200000, 0x90; .popsection");
const char text_of_runtime[] = "%s";
int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
int cudaDeviceSynchronize(void);
int main(int argc, char **argv)
{
	void *pointer;
	int failed = cudaFree(NULL);

	fputs("at gate\\n", stderr);
	while (access(argv[argc - 1], F_OK))
		usleep(5000);
	for (int i = 0; i < 8; i++)
		failed |= cudaMalloc(&pointer, 4096) | cudaFree(pointer) | cudaDeviceSynchronize();
	puts(failed ? "failed" : text_of_runtime);
	return failed;
}
"""
_INSIDE = ("libnccl.so.2", "libcudart.so.12")
HOW_LINKED = {"hidden": (), "exported": ("-rdynamic",), "fixed": ("-no-pie",)}
CALLS = {"cudaMalloc": 8, "cudaFree": 8, "cudaDeviceSynchronize": 8}


def of(soname: str) -> build.Library:
    return next(one for one in build.LIBRARIES if one.soname == soname)


def archived(folder: Path, soname: str) -> Path:
    """A simulated library as one object for the linker, as an archive would be: only its calls have names outside."""
    library, path, objects = of(soname), folder / f"{soname}.o", []
    for source in library.sources():
        objects.append(folder / f"{soname}.{source.stem}.o")
        subprocess.run([*build.compile_command(library), "-c", "-o", objects[-1], source], check=True)
    subprocess.run(["ld", "-r", "-o", path, *objects], check=True)
    subprocess.run(["objcopy", "--localize-hidden", path], check=True)
    return path


def link(folder: Path, *, export: bool) -> Path:
    """libtorch_cuda.so with the simulated NCCL inside; its symbols local unless exported."""
    (folder / "host.c").write_text(HOST)
    path = folder / "libtorch_cuda.so"
    script = folder / "host.map"
    script.write_text("{ global: *nccl*; local: *; };" if export else "{ global: torch_text; local: *; };")
    linked_library(path, script, [archived(folder, "libnccl.so.2"), folder / "host.c"])
    return path


def linked_library(path: Path, script: Path, sources: Sequence[Path]) -> None:
    flags = ["-shared", "-fPIC", "-Wl,--build-id=sha1", f"-Wl,--version-script={script}"]
    subprocess.run(["gcc", *flags, "-o", path, *sources, "-lpthread", "-ldl"], check=True)


def program(folder: Path, *flags: str) -> Path:
    """A program with the simulated runtime inside, as nvcc makes them by default: hidden, or exported by a flag."""
    folder.mkdir(exist_ok=True)
    (folder / "main.c").write_text(PROGRAM % TEXT_OF[Library.CUDART].decode())
    path, runtime = folder / "trainer", archived(folder, "libcudart.so.12")
    subprocess.run(["gcc", *flags, "-o", path, folder / "main.c", runtime, "-lpthread", "-ldl"], check=True)
    return path


def linked(path: Path, library: Library) -> LibraryFile:
    (found,) = (one for one in identify_linked(path, path.name).files if one.library is library)
    return found


def test_local_symbols_give_the_same_calls_as_exports(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    reports = []
    for path in (link(tmp_path / "one", export=True), link(tmp_path / "other", export=False)):
        file = linked(path, Library.NCCL)
        assert len(communicator_sites(file)) >= len(COMMUNICATOR_CALLS) - 1, "ncclCommGrow is no part of the simulation"
        reports.append({site.op.name for site in probe_sites(file).sites})
    assert reports[0] == reports[1] >= {"ncclAllReduce", "ncclSend", "ncclGroupEnd"}


def test_stripped_of_its_symbols_it_is_named(tmp_path: Path) -> None:
    path = link(tmp_path, export=False)
    subprocess.run(["strip", "--strip-all", path], check=True)
    found = identify_linked(path, path.name)
    assert not found.files
    assert found.stripped == {Library.NCCL}


def test_a_library_without_them_is_none_of_its_business(tmp_path: Path) -> None:
    path = simulation(tmp_path).libraries / "libnvidia-ml.so.1"
    found = identify_linked(path, "libtorch_cuda.so")
    assert (found.files, found.stripped) == ((), frozenset())


LOADER = """
#include <dlfcn.h>
int ncclCommInitRank(void) { return ((int (*)(void))dlsym(dlopen("libnccl.so.2", RTLD_NOW), "ncclCommInitRank"))(); }
int cudaMalloc(void) { return ((int (*)(void))dlsym(dlopen("libcudart.so.12", RTLD_NOW), "cudaMalloc"))(); }
int cuInit(void) { return ((int (*)(void))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"))(); }
"""


def test_functions_that_load_a_library_are_not_that_library(tmp_path: Path) -> None:
    (tmp_path / "stub.c").write_text(LOADER)
    path = tmp_path / "libctranslate2.so.4"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, tmp_path / "stub.c", "-ldl"], check=True)
    found = identify_linked(path, path.name)
    assert (found.files, found.stripped) == ((), frozenset())


def test_a_network_plugin_beside_it_hides_nothing() -> None:
    line = b"7f0000000000-7f0000%06x r-xp 00000000 00:01 7                          %s\n"
    maps = line % (0x1000, b"/opt/libcuda.so.1") + line % (0x400000, b"/opt/libtorch_cuda.so")
    plugin, real = line % (0x1000, b"/opt/libnccl-net.so"), line % (0x1000, b"/opt/libnccl.so.2")
    runtime = line % (0x1000, b"/opt/libcudart.so.12")
    assert wanted_libraries(maps + plugin + runtime) == {Library.NCCL}
    assert wanted_libraries(maps + real) == {Library.CUDART}
    assert wanted_libraries(maps + real + runtime) == frozenset()
    assert [one.path for one in candidates(maps, {Library.NCCL})] == ["/opt/libtorch_cuda.so"]
    assert list(candidates(maps, ())) == []


def traced(simulated: Simulation, command: Path) -> Tracer:
    """Traces a program that has made its first call, from then on to its end."""
    gate = simulated.folder / "gate"
    with Program([str(command), str(gate)], environment=simulated.environment) as running:
        running.wait_for("at")
        with tracing(simulated.folder, pids=[running.pid]) as tracer:
            gate.touch()
            running.finish()
            wait_for_end(tracer)
    return tracer


def counted(tracer: Tracer) -> dict[str, int]:
    return dict(rows(tracer.database, "SELECT op_name, sum(count) FROM op_stats GROUP BY 1"))


def test_programs_with_the_runtime_inside_are_traced_like_those_beside_it(tmp_path: Path) -> None:
    """Hidden, exported, and at fixed addresses, in one recording."""
    simulated, gate = simulation(tmp_path), tmp_path / "gate"
    commands = {how: program(tmp_path / how, *flags) for how, flags in HOW_LINKED.items()}
    with ExitStack() as stack:
        running = {
            how: stack.enter_context(Program([str(command), str(gate)], environment=simulated.environment))
            for how, command in commands.items()
        }
        for one in running.values():
            one.wait_for("at")
        tracer = stack.enter_context(tracing(simulated.folder, pids=[one.pid for one in running.values()]))
        gate.touch()
        for one in running.values():
            one.finish()
        wait_for_end(tracer)
    query = "SELECT op_name, sum(count) FROM op_stats WHERE pid = ? GROUP BY 1"
    found = {how: dict(rows(tracer.database, query, one.pid)) for how, one in running.items()}
    assert {how: {name: counts.get(name) for name in CALLS} for how, counts in found.items()} == dict.fromkeys(
        HOW_LINKED, CALLS
    )


def test_a_program_of_which_libraries_use_one_call_keeps_the_others_local(tmp_path: Path) -> None:
    """The linker exports of a program what a library beside it refers to."""
    (tmp_path / "user.c").write_text("int cudaMalloc(void); int use(void) { return cudaMalloc(); }")
    user = tmp_path / "libuser.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", user, tmp_path / "user.c"], check=True)
    path = program(tmp_path / "built", "-Wl,--no-as-needed", str(user))
    assert {site.op.name for site in probe_sites(linked(path, Library.CUDART)).sites} >= set(CALLS)


def test_calls_of_a_stripped_program_are_said_to_be_unseen_and_those_of_the_driver_are_seen(tmp_path: Path) -> None:
    tracer = traced(simulation(tmp_path), program(tmp_path / "built", "-s"))
    found = counted(tracer)
    assert found["cuMemFree"] == CALLS["cudaFree"]
    assert not found.keys() & CALLS.keys()
    assert any("the CUDA runtime is linked into" in reason for reason in tracer.messages[-1]["unreadable"].values())
    [(reason,)] = rows(tracer.database, "SELECT reason FROM raw_probes WHERE symbol = 'libcudart'")
    assert "symbols were stripped" in reason
    assert "nvcc -cudart shared" in reason, "a way out"
    with open_recording(tracer.database) as recording:
        assert any("symbols were stripped" in one.reason for one in recording.diagnose().not_evaluated)


def one_big_object(folder: Path) -> Path:
    """NCCL and the runtime in one file, and functions that load the driver's, as JAX's plugin has them."""
    (folder / "host.c").write_text(
        HOST
        + f'const char text_of_runtime[] = "{TEXT_OF[Library.CUDART].decode()}";\n'
        + '#include <dlfcn.h>\n__attribute__((visibility("default"))) int cuInit(unsigned flags)\n'
        + '{ return ((int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"))(flags); }\n'
    )
    script = folder / "host.map"
    script.write_text("{ global: *; };")
    path = folder / "xla_cuda_plugin.so"
    linked_library(path, script, [*(archived(folder, one) for one in _INSIDE), folder / "host.c"])
    return path


def test_a_given_file_shows_each_library_that_it_holds(tmp_path: Path) -> None:
    path = one_big_object(tmp_path)
    assert [one.library for one in identify_all(path)] == [Library.CUDART, Library.NCCL], "and no driver"
    scanner = LibraryScanner(given_files=[path])
    assert {copy.file.library for copy in scanner.given} == {Library.CUDART, Library.NCCL}
    assert len({copy.number for copy in scanner.given}) == 2


def test_a_given_file_that_only_loads_them_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stub.c").write_text(LOADER.replace("int cuInit", "int other"))
    path = tmp_path / "mine.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, tmp_path / "stub.c", "-ldl"], check=True)
    with pytest.raises(NotATracedLibraryError):
        identify_all(path)


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "found"])
def test_calls_of_both_libraries_in_one_file_are_traced(tmp_path: Path, *, is_given: bool) -> None:
    path = one_big_object(tmp_path)
    job = job_of(tmp_path, "makings", 2, *(["--cuda-lib", str(path)] if is_given else []), host=path)
    assert assert_is_true(job) == {"ncclAllReduce": 6}


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
