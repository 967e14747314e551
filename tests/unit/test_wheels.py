"""What wheels are made of, and what their build refuses; building one takes minutes and is what `make wheels` does."""

from __future__ import annotations

import ast
import re
import zipfile
import zlib
from pathlib import Path

import build_gpusim
import check_wheel
import pack_wheel
import pytest

from ingero import __version__
from ingero.demo import prebuilt
from ingero.demo.gpusim import build

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PROJECT = (ROOT / "pyproject.toml").read_text()
OBJECT = "ingero/bpf/objects/x86_64/scheduler.bpf.o"


def a_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Path:
    path = folder / f"{package}-{__version__}-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2026, 11, 28, 19, 30, 2))
            entry.external_attr = (0o100755 if "/programs/" in name else 0o100644) << 16
            archive.writestr(entry, content)
    return path


def raw_deflate(plain: bytes) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    return made.compress(plain) + made.flush()


def left_out() -> set[Path]:
    """The modules that no wheel has, as pyproject.toml names them."""
    [names] = re.findall(r"^exclude = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    return {ROOT / name for name in re.findall(r'"([^"!]+\.py)"', names)}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def test_nothing_in_a_wheel_imports_what_it_leaves_out() -> None:
    gone = {".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in left_out()}
    assert gone
    assert [path for path in left_out() if not path.exists()] == []
    kept = [path for path in (SOURCE / "ingero").rglob("*.py") if path not in left_out()]
    assert {path.name: found for path in kept if (found := imported(path) & gone)} == {}


def test_the_extra_is_the_package_of_this_version() -> None:
    assert f'demo = ["{prebuilt.PACKAGE}=={__version__}"]' in PROJECT


def test_the_package_has_every_library_and_what_the_scenarios_run() -> None:
    libraries = {f"{prebuilt.LIBRARIES}/{library.soname}" for library in build.LIBRARIES}
    programs = {
        f"{prebuilt.PROGRAMS}/{f'lib{Path(name).stem}.so' if is_library else Path(name).stem}"
        for name, is_library in build_gpusim.PROGRAMS.items()
    }
    assert libraries | programs | {prebuilt.KEY, "__init__.py"} == check_wheel._GPUSIM
    assert all((prebuilt.SOURCES / name).exists() for name in build_gpusim.PROGRAMS)


def test_a_wheel_as_it_should_be_is_not_refused(tmp_path: Path) -> None:
    check_wheel.refuse_faults(a_wheel(tmp_path, "ingero", {OBJECT: b"", check_wheel._READ: b""}))
    files = {f"ingero_gpusim/{name}": b"" for name in check_wheel._GPUSIM}
    check_wheel.refuse_faults(a_wheel(tmp_path, "ingero_gpusim", files))


@pytest.mark.parametrize(
    ("package", "files", "fault"),
    [
        ("ingero", {OBJECT: b"", "ingero/demo/faults/hog.c": b""}, "C sources: ingero/demo/faults/hog.c"),
        ("ingero", {OBJECT: b"", OBJECT.replace("x86_64", "aarch64"): b""}, "BPF objects of aarch64, x86_64"),
        ("ingero", {OBJECT: b"", "ingero/demo/gpusim/names/libcuda.so.1.txt": b""}, "only building the simulated GPU"),
        ("ingero_gpusim", {"ingero_gpusim/lib/libcuda.so.1": b""}, "unlike what it should have"),
    ],
)
def test_a_wheel_with_too_much_or_too_little_is_refused_and_removed(
    package: str, files: dict[str, bytes], fault: str, tmp_path: Path
) -> None:
    wheel = a_wheel(tmp_path, package, files)
    with pytest.raises(SystemExit, match=re.escape(fault)):
        check_wheel.refuse_faults(wheel)
    assert not wheel.exists()


@pytest.mark.parametrize("package", check_wheel.MAX_BYTES)
def test_a_wheel_that_is_too_large_is_refused(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_wheel.MAX_BYTES, package, 10)
    wheel = a_wheel(tmp_path, package, {OBJECT: b""})
    assert f"it has {wheel.stat().st_size:,} bytes; 10 at most" in list(check_wheel.faults(wheel))


def test_a_wheel_packed_anew_has_the_same_files(tmp_path: Path) -> None:
    files = {OBJECT: b"compressible" * 100, "ingero/é.py": b"x", "ingero/programs/hog": b"", "a/RECORD": b"\0" * 5000}
    wheel = a_wheel(tmp_path, "ingero", files)

    def listed() -> list[tuple[object, ...]]:
        with zipfile.ZipFile(wheel) as archive:
            assert archive.testzip() is None
            return [
                (entry.filename, entry.date_time, entry.external_attr, archive.read(entry))
                for entry in archive.infolist()
            ]

    before = listed()
    pack_wheel.repack(wheel, raw_deflate)
    assert listed() == before
    first = wheel.read_bytes()
    pack_wheel.repack(wheel, raw_deflate)
    assert wheel.read_bytes() == first
