"""discover.host and discover.system: what the machine is and what it is doing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingero.discover.gpus import Gpu, Nvml
from ingero.discover.host import machine_id, os_name, read_host
from ingero.discover.library_files import LibraryFile
from ingero.discover.system import Pressure, SystemSampler, parse_pressure
from ingero.ops import Library

MEMINFO = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n"


def a_proc(root: Path, cpu: str = "cpu  0 0 0 0 0 0 0 0 0 0") -> Path:
    (root / "stat").write_text(f"{cpu}\ncpu0 1 1 1 1\n")
    (root / "meminfo").write_text(MEMINFO)
    (root / "loadavg").write_text("1.50 0.75 0.25 2/100 4711\n")
    (root / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
    return root


def test_the_first_sample_has_no_cpu_percent(tmp_path: Path) -> None:
    assert SystemSampler(a_proc(tmp_path)).sample().cpu_percent is None


def test_cpu_percent_is_the_busy_share_since_the_last_sample(tmp_path: Path) -> None:
    sampler = SystemSampler(a_proc(tmp_path, "cpu  100 0 0 900 0 0 0 0 0 0"))
    sampler.sample()
    a_proc(tmp_path, "cpu  125 0 0 960 15 0 0 0 0 0")
    assert sampler.sample().cpu_percent == 25.0


def test_guest_time_is_not_counted_twice(tmp_path: Path) -> None:
    sampler = SystemSampler(a_proc(tmp_path, "cpu  0 0 0 0 0 0 0 0 0 0"))
    sampler.sample()
    a_proc(tmp_path, "cpu  50 0 0 50 0 0 0 0 50 0")
    assert sampler.sample().cpu_percent == 50.0


def test_memory_and_load_are_read(tmp_path: Path) -> None:
    sample = SystemSampler(a_proc(tmp_path)).sample()
    assert sample.mem_percent == 75.0
    assert sample.mem_available_bytes == 250 * 1024
    assert sample.swap_used_bytes == 60 * 1024
    assert sample.load_avg == (1.5, 0.75, 0.25)


def test_a_kernel_without_pressure_information_has_none(tmp_path: Path) -> None:
    assert SystemSampler(a_proc(tmp_path)).sample().pressure == {}


def test_pressure_is_read() -> None:
    text = "some avg10=1.50 avg60=0.03 avg300=0.05 total=3931292\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=7\n"
    assert parse_pressure(text) == Pressure(
        some_avg10_percent=1.5, some_total_us=3931292, full_avg10_percent=0.25, full_total_us=7
    )


def test_pressure_without_full_counts_zero() -> None:
    pressure = parse_pressure("some avg10=1.50 avg60=0.03 avg300=0.05 total=39\n")
    assert pressure is not None
    assert pressure.full_total_us == 0


def test_throttling_is_sampled_for_the_groups_asked_for(tmp_path: Path) -> None:
    group = tmp_path / "cpu.stat"
    group.write_text("nr_periods 5\nnr_throttled 2\nthrottled_time 77\n")
    sample = SystemSampler(a_proc(tmp_path)).sample([group, tmp_path / "gone"])
    assert {path: value.throttled_ns for path, value in sample.throttling.items()} == {group: 77}


def test_the_real_machine_is_sampled() -> None:
    sample = SystemSampler().sample()
    assert 0 < sample.mem_percent < 100
    assert sample.mem_total_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NAME=x\nPRETTY_NAME="Debian GNU/Linux 12"\n', "Debian GNU/Linux 12"),
        ("PRETTY_NAME=Arch\n", "Arch"),
        ("", "Linux"),
    ],
)
def test_the_distribution_is_named(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "os-release").write_text(text)
    assert os_name(tmp_path / "os-release") == name


def a_library(name: str, soname: str) -> LibraryFile:
    return LibraryFile(
        library=Library.CUDART,
        path=Path("/x") / name,
        device=1,
        inode=1,
        size_bytes=1,
        build="b",
        soname=soname,
        machine="EM_X86_64",
    )


def test_the_cuda_version_is_that_of_the_newest_runtime_in_use(tmp_path: Path) -> None:
    libraries = [
        a_library("libcudart.so.11.0", "libcudart.so.11.0"),
        a_library("libcudart.so.12.9.79", "libcudart.so.12"),
    ]
    nvml = Nvml(cuda_version=(13, 0))
    assert read_host(nvml=nvml, libraries=libraries, proc=a_proc(tmp_path)).cuda_version == "12.9"


def test_without_a_runtime_the_driver_says_the_cuda_version(tmp_path: Path) -> None:
    assert read_host(nvml=Nvml(cuda_version=(13, 0)), proc=a_proc(tmp_path)).cuda_version == "13.0"


def test_a_machine_without_gpu_is_described(tmp_path: Path) -> None:
    host = read_host(proc=a_proc(tmp_path), etc=tmp_path)
    assert (host.gpu_model, host.cuda_version) == (None, None)
    assert (host.cpu_model, host.memory_bytes, host.os_name) == ("AMD EPYC 9654", 1000 * 1024, "Linux")


def test_equal_gpus_are_named_once(tmp_path: Path) -> None:
    gpus = tuple(
        Gpu(index=index, uuid=f"GPU-{index}", name="H200", memory_bytes=1, pci_bus_id="", max_sm_clock_mhz=None)
        for index in range(2)
    )
    host = read_host(nvml=Nvml(gpus=gpus), proc=a_proc(tmp_path))
    assert host.gpu_model == "H200"


def test_the_machine_id_is_that_of_the_first_process_and_never_stored_as_it_is(tmp_path: Path) -> None:
    proc, etc = tmp_path / "proc", tmp_path / "etc"
    of_host, of_image = "0123456789abcdef" * 2, "f" * 32
    for folder, text in ((proc / "1/root/etc", of_host), (etc, of_image)):
        folder.mkdir(parents=True)
        (folder / "machine-id").write_text(f"{text}\n")
    found = machine_id(proc=proc, etc=etc)
    assert len(found) == 32
    assert of_host not in found
    (proc / "1/root/etc/machine-id").unlink()
    assert machine_id(proc=proc, etc=etc) not in {found, of_image, ""}


@pytest.mark.parametrize("text", ["", "uninitialized", "0123"])
def test_what_is_no_machine_id_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "machine-id").write_text(text)
    assert machine_id(proc=tmp_path, etc=tmp_path) == ""
