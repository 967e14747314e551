"""discover.library_files, library_search and entry_points: names, identities and places."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from ingero.discover.entry_points import base_name, entry_points, traced_driver_calls
from ingero.discover.library_files import LibraryFile, NotATracedLibraryError, identify, library_kind
from ingero.discover.library_search import library_copies_on_disk
from ingero.ops import OPS, Library

A_FILE = LibraryFile(
    library=Library.CUDART,
    path=Path("/x/libcudart.so.12"),
    device=1,
    inode=2,
    size_bytes=3,
    build="abcd",
    soname="libcudart.so.12",
    machine="EM_X86_64",
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("libcudart.so.12", Library.CUDART),
        ("libcudart.so.11.8.89", Library.CUDART),
        ("libcudart-80664282.so.10.2", Library.CUDART),
        ("libcuda.so", None),  # the linker's name: a stub, a link, or (WSL) a driver
        ("libcuda.so.1", Library.CUDA),
        ("libcuda.so.550.54.15", Library.CUDA),
        ("libnccl.so.2", Library.NCCL),
        ("libcudadebugger.so.1", None),
        ("libnccl-net.so", None),
        ("libcudart_static.a", None),
        ("libcuda.so.1.bak", None),
        ("libcudart.so.12 (deleted)", Library.CUDART),  # as /proc/PID/maps has a file that is gone
        ("libnccl-1c4ae0a8.so.2.19.3", Library.NCCL),
        ("libnccl-tuner-ofi.so", None),
        ("libnccl-profiler-example.so", None),
        ("libnccl_static.a", None),
        ("librccl.so.1", None),
        ("libcuda_wrapper.so", None),
        ("libcuda-control.so", None),  # of a virtual GPU, which loads the driver's
        ("libcudart64_12.dll", None),
        ("libcuda.sock", None),
        ("notlibcuda.so.1", None),
    ],
)
def test_a_file_name_tells_the_library(name: str, kind: Library | None) -> None:
    assert library_kind(name) is kind


def test_the_same_inode_on_two_devices_is_two_files() -> None:
    assert not A_FILE.is_same_file(dataclasses.replace(A_FILE, device=9))


def test_the_same_inode_in_two_overlays_is_one_file() -> None:
    overlay = dataclasses.replace(A_FILE, device=None)
    assert overlay.is_same_file(dataclasses.replace(overlay, path=Path("/other/mount/libcudart.so.12")))


def test_an_overlay_and_the_file_below_it_are_one_file() -> None:
    assert A_FILE.is_same_file(dataclasses.replace(A_FILE, device=None))


@pytest.mark.parametrize("change", [{"inode": 9}, {"size_bytes": 9}, {"build": "ef"}])
def test_another_inode_size_or_build_is_another_file(change: dict[str, object]) -> None:
    overlay = dataclasses.replace(A_FILE, device=None)
    assert not overlay.is_same_file(dataclasses.replace(overlay, **change))  # type: ignore[arg-type] # any field


def test_another_library_is_refused_with_a_way_out() -> None:
    libc = next(Path("/usr/lib").rglob("libc.so.6"))
    with pytest.raises(NotATracedLibraryError) as error:
        identify(libc)
    assert "libcuda" in error.value.hint


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    "place",
    [
        "usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "usr/local/cuda-12.4/targets/x86_64-linux/lib/libcudart.so.12",
        "opt/conda/envs/train/lib/libcudart.so.12",
        "usr/local/lib/python3.12/dist-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
        "home/ann/.local/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "home/ann/miniconda3/envs/t/lib/python3.11/site-packages/torch/lib/libcudart-80664282.so.11.0",
        "opt/conda/envs/dev/targets/x86_64-linux/lib/libcudart.so.12.4.127",
        "usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef/libcuda.so.1.1",
        "usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1",
        "usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1",
        "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.550.163.01",
        "usr/local/lib/ollama/cuda_v12/libcudart.so.12",
        "opt/nvidia/hpc_sdk/Linux_x86_64/24.7/cuda/12.5/lib64/libcudart.so.12",
        "opt/nvidia/hpc_sdk/Linux_x86_64/24.7/comm_libs/12.5/nccl/lib/libnccl.so.2",
    ],
)
def test_well_known_places_are_searched(tmp_path: Path, place: str) -> None:
    path = touch(tmp_path / place)
    touch(path.parent / "libfoo.so")
    assert library_copies_on_disk(root=tmp_path) == (path,)


def test_links_to_one_file_are_one_copy(tmp_path: Path) -> None:
    path = touch(tmp_path / "usr/lib64/libcuda.so.550.54.15")
    (path.parent / "libcuda.so.1").symlink_to(path.name)
    (path.parent / "libcuda.so").symlink_to("libcuda.so.1")
    (path.parent / "libcudart.so").symlink_to("nowhere")
    assert library_copies_on_disk(root=tmp_path) == (path,)


def test_the_library_path_of_a_process_is_searched(tmp_path: Path) -> None:
    path = touch(tmp_path / "mine/libnccl.so.2")
    environ = {"LD_LIBRARY_PATH": f"relative:{path.parent}:/does/not/exist"}
    assert library_copies_on_disk(root=tmp_path / "root", environs=[environ]) == (path,)


def test_the_virtual_environment_of_a_process_is_searched(tmp_path: Path) -> None:
    path = touch(tmp_path / "venv/lib/python3.10/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12")
    environ = {"VIRTUAL_ENV": str(tmp_path / "venv")}
    assert library_copies_on_disk(root=tmp_path / "root", environs=[environ]) == (path,)


def ld_so_cache(paths: list[str]) -> bytes:
    """A cache of the dynamic loader in the format of glibc 2.2 and later."""
    header_size = 48
    strings_at = header_size + 24 * len(paths)
    strings, entries = b"", b""
    for path in paths:
        name_at = strings_at + len(strings)
        strings += path.rpartition("/")[2].encode() + b"\0"
        path_at = strings_at + len(strings)
        strings += path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", 0x303, name_at, path_at, 0, 0)
    return struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(paths), len(strings)) + entries + strings


def test_the_loaders_cache_names_libraries_in_unusual_places(tmp_path: Path) -> None:
    path = touch(tmp_path / "srv/nvidia/libcuda.so.1")
    touch(tmp_path / "etc/ld.so.cache").write_bytes(ld_so_cache(["/lib/libc.so.6", "/srv/nvidia/libcuda.so.1"]))
    assert library_copies_on_disk(root=tmp_path) == (path,)


@pytest.mark.parametrize("cut", [0, 10, 30, 60])
def test_a_damaged_loader_cache_is_no_error(tmp_path: Path, cut: int) -> None:
    touch(tmp_path / "etc/ld.so.cache").write_bytes(ld_so_cache(["/srv/nvidia/libcuda.so.1"])[:cut])
    assert library_copies_on_disk(root=tmp_path) == ()


def test_every_traced_driver_call_has_an_entry_point() -> None:
    assert set(traced_driver_calls()) == {point.name for point in entry_points()}


def test_a_call_whose_arguments_changed_places_is_read_by_its_version() -> None:
    places = {p.version: p.op.extra.slot for p in entry_points() if p.name == "cuCtxCreate" and p.op.extra}
    assert places == {2000: 3, 3020: 3, 11040: 5, 12050: 4}


def test_every_per_thread_variant_of_a_driver_call_is_asked_for() -> None:
    asked = {(point.name, point.suffix) for point in entry_points() if point.suffix}
    named = {
        (base_name(symbol), symbol[-5:])
        for op in OPS
        if op.library is Library.CUDA
        for symbol in op.symbols
        if symbol.endswith(("_ptsz", "_ptds"))
    }
    assert asked == named


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cuLaunchKernel_ptsz", "cuLaunchKernel"),
        ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"),
        ("cuMemsetD2D8", "cuMemsetD2D8"),
    ],
)
def test_the_driver_knows_a_symbol_by_its_base_name(symbol: str, name: str) -> None:
    assert base_name(symbol) == name
