"""discover.gpus: which GPU stands behind a CUDA device ordinal, and a machine without NVML."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.discover.gpus import Gpu, Nvml, visible_uuids


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
    ],
)
def test_cuda_visible_devices_chooses_and_orders(asked: str, uuids: tuple[str | None, ...]) -> None:
    assert visible_uuids(FOUR, {"CUDA_VISIBLE_DEVICES": asked}) == uuids


def test_without_the_variable_every_gpu_is_seen() -> None:
    assert visible_uuids(FOUR, {}) == tuple(gpu.uuid for gpu in FOUR)


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


@pytest.mark.parametrize("asked", ["none", "void"])
def test_a_container_may_have_no_gpu(asked: str) -> None:
    assert visible_uuids(FOUR, {"NVIDIA_VISIBLE_DEVICES": asked}, is_containerized=True) == ()


def test_a_machine_without_nvml_has_no_samples() -> None:
    assert Nvml(reason="no driver").sample() == ()


SLICED = [replace(a_gpu(0), mig_uuids=("MIG-aaaa", "MIG-bbbb")), a_gpu(1)]


@pytest.mark.parametrize("asked", ["MIG-bbbb", "MIG-GPU-00aa/7/0"])
def test_a_slice_stands_for_the_gpu_that_it_is_part_of(asked: str) -> None:
    assert visible_uuids(SLICED, {"CUDA_VISIBLE_DEVICES": asked}) == ("GPU-00aa",)


def test_two_slices_of_one_gpu_are_two_devices() -> None:
    assert visible_uuids(SLICED, {"CUDA_VISIBLE_DEVICES": "MIG-aaaa,MIG-bbbb"}) == ("GPU-00aa", "GPU-00aa")


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_beside_a_sliced_gpu_the_order_is_not_known(environ: dict[str, str]) -> None:
    assert set(visible_uuids(SLICED, environ)) == {None}


WORDS = st.sampled_from(["0", "1", "-1", "GPU-", "GPU-11aa", "MIG-aaaa", "MIG-", ",", " ", "99999999999999999999"])
TEXTS = st.one_of(st.lists(WORDS).map("".join), st.lists(WORDS).map(",".join), st.binary().map(os.fsdecode))


@given(asked=TEXTS, contained=TEXTS, gpus=st.sampled_from([FOUR, MIXED, SLICED, []]))
def test_any_text_names_gpus_that_are_there(asked: str, contained: str, gpus: list[Gpu]) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": asked, "NVIDIA_VISIBLE_DEVICES": contained}
    seen = visible_uuids(gpus, environ, is_containerized=True)
    assert set(seen) <= {None, *(gpu.uuid for gpu in gpus)}
