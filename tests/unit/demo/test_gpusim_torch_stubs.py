"""The stubs for a real PyTorch wheel, made here for a small library that imports what torch does."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import subprocess
from pathlib import Path

import pytest

from ingero.demo.gpusim import torch_stubs
from tests.unit.gpusim_fixtures import Rig, gpusim_lib, rig


def _compile(folder: Path, soname: str, code: str, *arguments: str) -> None:
    source = folder / "source.c"
    source.write_text(code)
    output = ["-o", str(folder / soname), f"-Wl,-soname,{soname}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *output, str(source), *arguments], check=True)


@pytest.fixture
def torch_lib(tmp_path: Path) -> Path:
    """A libtorch_cuda.so that was linked with a versioned cuBLAS."""
    linked, torch = tmp_path / "linked", tmp_path / "torch"
    linked.mkdir()
    torch.mkdir()
    (linked / "map").write_text("libcublas.so.12 { global: *; };")
    names = ("cublasCreate_v2", "cublasSgemm_v2", "cublasSetStream_v2", "cublasSetMathMode")
    code = "\n".join(f"int {name}(void) {{ return 0; }}" for name in names)
    _compile(linked, "libcublas.so.12", code, f"-Wl,--version-script={linked / 'map'}")
    calls = "\n".join(f"int {name}(void); int call_{name}(void) {{ return {name}(); }}" for name in names)
    _compile(torch, "libtorch_cuda.so", calls, str(linked / "libcublas.so.12"))
    return torch


def test_a_matrix_product_reaches_the_driver_and_not_the_runtime(rig: Rig, torch_lib: Path, tmp_path: Path) -> None:
    rig.lib = torch_stubs.build_for_torch(torch_lib, tmp_path / "stubs")
    rig.run(
        """
        check(malloc(4096)[0])
        torch = c.CDLL(sys.argv[1])
        check(torch.call_cublasSetMathMode())
        check(torch.call_cublasSgemm_v2())
        """,
        torch_lib / "libtorch_cuda.so",
    )
    calls = rig.truth().calls
    assert calls["driver", "cuLaunchKernel"].outer == 1
    assert ("runtime", "cudaLaunchKernel") not in calls


def test_a_folder_without_a_cuda_build_of_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(torch_stubs.TorchStubsError, match="libtorch_cuda") as error:
        torch_stubs.build_for_torch(tmp_path, tmp_path / "stubs")
    assert "pip install torch" in error.value.hint
