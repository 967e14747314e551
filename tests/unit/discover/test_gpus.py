"""discover.gpus: which GPU stands behind a CUDA device ordinal, and a machine without NVML."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.discover.gpus import Gpu, Nvml, device_nodes, visible_uuids
from ingero.discover.rooted import RootFiles


def a_gpu(index: int, name: str = "H100") -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{index}{index}aa",
        name=name,
        memory_bytes=1,
        pci_bus_id=f"00000000:0{index}:00.0",
        max_sm_clock_mhz=None,
    )


FOUR = [a_gpu(index) for index in range(4)]
MIXED = [a_gpu(0, "T4"), a_gpu(1, "H100")]


@pytest.mark.parametrize(
    ("asked", "uuids"),
    [
        ("0", ("GPU-00aa",)),
        ("3,1", ("GPU-33aa", "GPU-11aa")),
        (" 2 , 0", ("GPU-22aa", "GPU-00aa")),
        ("GPU-22", ("GPU-22aa",)),
        ("0,-1,1", ("GPU-00aa",)),
        ("0,9,1", ("GPU-00aa",)),
        ("", ()),
        ("GPU-", ()),
        ("1,1", ()),
        ("MIG-abc", (None,)),
        ("-1", ()),
        ("all", ()),
        ('"0"', ()),
        ("gpu-22aa", ()),
        ("0,,1", ("GPU-00aa",)),
        ("1,", ("GPU-11aa",)),
        ("1gpu,2ampere", ("GPU-11aa", "GPU-22aa")),  # torch.cuda: read as by strtoul()
        ("0 1", ("GPU-00aa",)),
        ("0-3", ("GPU-00aa",)),
        ("+3,-0", ("GPU-33aa", "GPU-00aa")),
        ("0,0x", ()),
        ("GPU-22,1", ("GPU-22aa",)),  # torch.cuda, nvitop: the first tells the kind
        ("1,GPU-22", ("GPU-11aa",)),
        ("GPU-22,GPU-22aa", ()),
    ],
)
def test_cuda_visible_devices_chooses_and_orders(asked: str, uuids: tuple[str | None, ...]) -> None:
    assert visible_uuids(FOUR, {"CUDA_VISIBLE_DEVICES": asked}) == uuids


def test_without_the_variable_every_gpu_is_seen() -> None:
    assert visible_uuids(FOUR, {"PATH": "/usr/bin"}) == tuple(gpu.uuid for gpu in FOUR)


def test_an_environment_that_was_wiped_is_not_one_without_the_variable() -> None:
    assert set(visible_uuids(FOUR, {})) == {None}


def test_with_different_models_the_order_is_not_known() -> None:
    assert visible_uuids(MIXED, {"CUDA_VISIBLE_DEVICES": "0"}) == (None,)


def test_the_order_of_different_models_is_known_if_asked_for_by_bus() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_uuids(MIXED, environ) == ("GPU-11aa",)


def test_a_uuid_is_certain_even_among_different_models() -> None:
    assert visible_uuids(MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-00aa"}) == ("GPU-00aa",)


def test_a_container_sees_only_its_gpus() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "GPU-22aa,3", "CUDA_VISIBLE_DEVICES": "1"}
    assert visible_uuids(FOUR, environ, is_containerized=True) == ("GPU-33aa",)


def test_outside_a_container_its_variable_means_nothing() -> None:
    assert visible_uuids(FOUR, {"NVIDIA_VISIBLE_DEVICES": "none"}) == tuple(gpu.uuid for gpu in FOUR)


def test_a_container_may_have_no_gpu() -> None:
    assert visible_uuids(FOUR, {"NVIDIA_VISIBLE_DEVICES": "none"}, is_containerized=True) == ()


HIDDEN = [
    {"NVIDIA_VISIBLE_DEVICES": "void"},
    {"NVIDIA_VISIBLE_DEVICES": ""},
    {"PATH": "/usr/bin"},
    {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
    {"NVIDIA_VISIBLE_DEVICES": "MIG-cccc"},
    {"NVIDIA_VISIBLE_DEVICES": "all,void"},
    {"NVIDIA_VISIBLE_DEVICES": "7"},  # with a device that is not here the toolkit starts nothing
    {"NVIDIA_VISIBLE_DEVICES": "foo"},
    {"NVIDIA_VISIBLE_DEVICES": "vendor.com/net=eth1"},
]


@pytest.mark.parametrize("environ", HIDDEN)
def test_a_container_whose_devices_came_another_way_has_gpus_that_are_not_known(environ: dict[str, str]) -> None:
    assert visible_uuids(FOUR, environ, is_containerized=True) == (None,)
    asked = environ | {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert visible_uuids(FOUR, asked, is_containerized=True) == (None, None)
    named = environ | {"CUDA_VISIBLE_DEVICES": "GPU-33aa"}
    assert visible_uuids(FOUR, named, is_containerized=True) == ("GPU-33aa",)


@pytest.mark.parametrize("environ", HIDDEN)
def test_the_only_gpu_of_a_machine_needs_no_word(environ: dict[str, str]) -> None:
    assert visible_uuids(FOUR[:1], environ, is_containerized=True) == ("GPU-00aa",)


@pytest.mark.parametrize("environ", [*HIDDEN, {"NVIDIA_VISIBLE_DEVICES": "all"}])
def test_the_device_nodes_in_a_container_name_its_gpus(environ: dict[str, str]) -> None:
    numbered = [replace(gpu, minor=3 - gpu.index) for gpu in FOUR]
    assert visible_uuids(numbered, environ, is_containerized=True, nodes={1}) == ("GPU-22aa",)


def test_nodes_of_every_gpu_say_no_more_than_the_environment() -> None:
    numbered = [replace(gpu, minor=gpu.index) for gpu in FOUR]
    environ = {"NVIDIA_VISIBLE_DEVICES": "2"}
    assert visible_uuids(numbered, environ, is_containerized=True, nodes={0, 1, 2, 3}) == ("GPU-22aa",)


@pytest.mark.parametrize(
    ("asked", "uuids"),
    [
        ("nvidia.com/gpu=2", ("GPU-22aa",)),
        ("nvidia.com/gpu=0,nvidia.com/gpu=3", ("GPU-00aa", "GPU-33aa")),
        ("nvidia.com/gpu=GPU-11aa", ("GPU-11aa",)),
        ("k8s.device-plugin.nvidia.com/gpu=GPU-11aa", ("GPU-11aa",)),
        ("runtime.nvidia.com/gpu=all", ("GPU-00aa", "GPU-11aa", "GPU-22aa", "GPU-33aa")),
        ("GPU-22aa::1", ("GPU-22aa",)),
        ("3,1", ("GPU-11aa", "GPU-33aa")),  # a container's devices are in the order of the bus, too
        (" 1 , 3", ("GPU-11aa", "GPU-33aa")),
        (",1,", ("GPU-11aa",)),
        ("ALL", ("GPU-00aa", "GPU-11aa", "GPU-22aa", "GPU-33aa")),  # libnvidia-container, select_devices
        ("0,all", ("GPU-00aa", "GPU-11aa", "GPU-22aa", "GPU-33aa")),
        ("0000:02:00.0", ("GPU-22aa",)),
        ("00000000:02:00.0", ("GPU-22aa",)),
        ("gpu-22AA", ("GPU-22aa",)),
        ("nvidia.com/gpu=1,nvidia.com/gds=all", ("GPU-11aa",)),
        ("none", ()),
    ],
)
def test_containers_name_their_gpus_in_several_ways(asked: str, uuids: tuple[str, ...]) -> None:
    assert visible_uuids(FOUR, {"NVIDIA_VISIBLE_DEVICES": asked}, is_containerized=True) == uuids


def in_slurm(asked: str, **variables: str) -> tuple[str | None, ...]:
    return visible_uuids(FOUR, {"SLURM_JOB_ID": "77", "CUDA_VISIBLE_DEVICES": asked} | variables)


@pytest.mark.parametrize(
    ("asked", "mine", "uuids"),
    [
        ("0", "3", ("GPU-33aa",)),  # ConstrainDevices: from 0
        ("3", "3", ("GPU-33aa",)),  # without it
        ("0,1", "2,3", ("GPU-22aa", "GPU-33aa")),
        ("1", "2,3", ("GPU-33aa",)),
        ("2,3", "2,3", ("GPU-22aa", "GPU-33aa")),
        ("1,2", "1,2", ("GPU-11aa", "GPU-22aa")),
        ("1", "1,2", (None,)),  # the second of the job's, or the node's second
        ("2", "0,1,2,3", ("GPU-22aa",)),
        ("0", "0", ("GPU-00aa",)),
        ("0", "a100:1", (None,)),
        ("GPU-33aa", "0", ("GPU-33aa",)),
    ],
)
def test_slurms_numbers_are_its_jobs_own_or_the_nodes(asked: str, mine: str, uuids: tuple[str | None, ...]) -> None:
    assert in_slurm(asked, SLURM_STEP_GPUS=mine) == uuids
    assert in_slurm(asked, SLURM_JOB_GPUS=mine) == uuids


def test_the_step_of_a_job_says_more_than_the_job() -> None:
    assert in_slurm("0", SLURM_JOB_GPUS="0,3", SLURM_STEP_GPUS="3") == ("GPU-33aa",)


def test_in_a_job_that_does_not_say_its_gpus_a_number_is_not_known() -> None:
    assert in_slurm("0") == (None,)


@pytest.mark.parametrize("asked", ["0,1,2,3", "3", "3,1"])
def test_the_nodes_last_gpu_has_the_same_number_by_either_count(asked: str) -> None:
    assert in_slurm(asked) == visible_uuids(FOUR, {"CUDA_VISIBLE_DEVICES": asked})


def test_a_number_too_high_for_the_job_is_the_nodes() -> None:
    assert in_slurm("2", SLURM_GPUS_ON_NODE="1") == ("GPU-22aa",)
    assert in_slurm("0", SLURM_GPUS_ON_NODE="1") == (None,)


@pytest.mark.parametrize(
    ("mine", "uuids"), [("2,3", (None,)), ("0,1,2,3", ("GPU-00aa", "GPU-11aa", "GPU-22aa", "GPU-33aa"))]
)
def test_a_job_that_unset_the_variable_sees_its_own_gpus_or_all(mine: str, uuids: tuple[str | None, ...]) -> None:
    assert visible_uuids(FOUR, {"SLURM_JOB_ID": "77", "SLURM_JOB_GPUS": mine}) == uuids


RAY = {"RAY_RAYLET_PID": "123"}


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [
        (RAY, (None,)),
        (RAY | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (None,)),
        (RAY | {"CUDA_VISIBLE_DEVICES": "2"}, ("GPU-22aa",)),  # which else
        (RAY | {"CUDA_VISIBLE_DEVICES": ""}, ()),
        (
            RAY | {"CUDA_VISIBLE_DEVICES": "3,2", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
            ("GPU-33aa", "GPU-22aa"),
        ),
    ],
)
def test_rays_workers_choose_among_several_gpus_unseen(environ: dict[str, str], uuids: tuple[str | None, ...]) -> None:
    assert visible_uuids(FOUR, environ) == uuids


def test_slurms_numbers_are_those_of_device_nodes_not_nvmls() -> None:
    numbered = [replace(gpu, minor=3 - gpu.index) for gpu in FOUR]
    environ = {"SLURM_JOB_ID": "77", "CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "3"}
    assert visible_uuids(numbered, environ) == (None,)


def test_a_machine_without_nvml_has_no_samples() -> None:
    assert Nvml(reason="no driver").sample() == ()


SLICED = [replace(a_gpu(0), mig_uuids=("MIG-aaaa", "MIG-bbbb")), a_gpu(1)]


@pytest.mark.parametrize("asked", ["MIG-bbbb", "MIG-GPU-00aa/7/0"])
def test_a_slice_stands_for_the_gpu_that_it_is_part_of(asked: str) -> None:
    assert visible_uuids(SLICED, {"CUDA_VISIBLE_DEVICES": asked}) == ("GPU-00aa",)


@pytest.mark.parametrize(
    "asked", ["MIG-aaaa", "0:1", "nvidia.com/mig=MIG-bbbb", "MIG-GPU-00aa/3/0", "MIG-aaaa,MIG-bbbb"]
)
def test_a_container_with_slices_of_one_gpu_is_on_that(asked: str) -> None:
    assert visible_uuids(SLICED, {"NVIDIA_VISIBLE_DEVICES": asked}, is_containerized=True) == ("GPU-00aa",)


@pytest.mark.parametrize("environ", [{"PATH": "/usr/bin"}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_the_only_gpu_is_known_whether_it_is_sliced_or_not(environ: dict[str, str]) -> None:
    assert visible_uuids(SLICED[:1], environ) == ("GPU-00aa",)


def test_two_slices_of_one_gpu_are_two_devices() -> None:
    assert visible_uuids(SLICED, {"CUDA_VISIBLE_DEVICES": "MIG-aaaa,MIG-bbbb"}) == ("GPU-00aa", "GPU-00aa")


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_beside_a_sliced_gpu_the_order_is_not_known(environ: dict[str, str]) -> None:
    assert set(visible_uuids(SLICED, environ)) == {None}


WORDS = st.sampled_from(
    [
        "9" * 5000,
        "nvidia.com/gpu=",
        "void",
        "::",
        ":",
        "0",
        "1",
        "-1",
        "GPU-",
        "GPU-11aa",
        "MIG-aaaa",
        "MIG-",
        ",",
        " ",
        "99999999999999999999",
    ]
)
TEXTS = st.one_of(st.lists(WORDS).map("".join), st.lists(WORDS).map(",".join), st.binary().map(os.fsdecode))


@given(asked=TEXTS, contained=TEXTS, gpus=st.sampled_from([FOUR, MIXED, SLICED, []]))
def test_any_text_names_gpus_that_are_there(asked: str, contained: str, gpus: list[Gpu]) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": asked, "NVIDIA_VISIBLE_DEVICES": contained}
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_GPUS": contained, "CUDA_VISIBLE_DEVICES": asked}
    for seen in (visible_uuids(gpus, environ, is_containerized=True), visible_uuids(gpus, slurm)):
        assert set(seen) <= {None, *(gpu.uuid for gpu in gpus)}


def test_device_nodes_are_looked_for_inside_the_process_root(tmp_path: Path) -> None:
    dev = tmp_path / "7/root/dev"
    dev.mkdir(parents=True)
    gpus = [replace(gpu, minor=gpu.index) for gpu in FOUR]
    assert device_nodes(7, gpus, RootFiles(tmp_path)) is None
    (dev / "nvidia1").write_text("no device")
    (dev / "nvidia3").symlink_to("/dev/null")
    assert device_nodes(7, gpus, RootFiles(tmp_path)) is None
    if os.geteuid() == 0:
        os.mknod(dev / "nvidia2", stat.S_IFCHR | 0o600, os.makedev(195, 2))
        assert device_nodes(7, gpus, RootFiles(tmp_path)) == {2}
    assert device_nodes(8, gpus, RootFiles(tmp_path)) is None
