"""Attaches empty probes where the agent's probes would be: the cost that no tracer of these calls can avoid."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import ingero
from ingero.attach.libbpf import BpfObject
from ingero.attach.probes import UPROBE_TYPES, CallProbes, CallSite, ProbeMode
from ingero.discover.driver_offsets import driver_offsets
from ingero.discover.libraries import LibraryScanner
from ingero.discover.sites import Site, probe_sites
from ingero.ops import Kind, Library

BENCH = Path(__file__).resolve().parent
BPF_SOURCES = Path(ingero.__file__).parent / "bpf"
sys.path.insert(0, str(BENCH.parent / "tools"))


@contextmanager
def empty_probes(pid: int, folder: Path, *, launches_at_driver: bool) -> Iterator[None]:
    """While it lasts each traced call of a process traps at entry and return, an inner one at its entry only.

    launches_at_driver: the runtime's launches have no probe, and the driver's trap twice.
    """
    placed: dict[bool, list[CallSite]] = {False: [], True: []}
    for site, path in _sites(pid):
        is_launch = bool(site.op.kind & Kind.LAUNCH)
        if launches_at_driver and is_launch and site.op.library is Library.CUDART:
            continue
        is_inner = site.op.library is Library.CUDA and not (launches_at_driver and is_launch)
        placed[is_inner].append(CallSite(path=str(path), offset=site.file_offset, cookie=site.cookie))
    with ExitStack() as resources:
        for is_inner, sites in placed.items():
            loaded = BpfObject(
                _built(folder, is_inner), programs=("call_session",), uprobe_types=UPROBE_TYPES[ProbeMode.SESSION]
            )
            probes = CallProbes(resources.enter_context(loaded), ProbeMode.SESSION)
            resources.callback(probes.close)
            failed = probes.attach(sites)
            assert not failed, failed
        yield


def _sites(pid: int) -> Iterator[tuple[Site, Path]]:
    for copy in LibraryScanner().rescan([pid]).copies:
        report = probe_sites(copy.file)
        if copy.file.library is Library.CUDA:
            report = driver_offsets(copy.file, report.sites).added_to(report)
        for site in report.sites:
            yield site, copy.file.path


def _built(folder: Path, is_inner: bool) -> Path:
    from build_bpf import ARCHITECTURES, FLAGS, compiler  # noqa: PLC0415 (tools/ is no package)

    target = folder / f"empty{int(is_inner)}.bpf.o"
    defines = [f"-D__TARGET_ARCH_{ARCHITECTURES[platform.machine()]}", f"-DNESTED={int(is_inner)}"]
    source = BENCH / "empty_probes.bpf.c"
    subprocess.run([*compiler(), *FLAGS, *defines, f"-I{BPF_SOURCES}", "-c", source, "-o", target], check=True)
    return target
