"""Building the native programs of the workloads."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ingero.demo.workloads import native

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text("int main(void) { return 42; }\n")
    return path


def test_a_built_program_runs(source: Path) -> None:
    assert subprocess.run([native.build_source(source)], check=False).returncode == 42


def test_an_unchanged_source_is_not_compiled_again(source: Path) -> None:
    first = native.build_source(source).stat().st_mtime_ns
    assert native.build_source(source).stat().st_mtime_ns == first


def test_a_changed_source_becomes_another_program(source: Path) -> None:
    before = native.build_source(source)
    source.write_text("int main(void) { return 43; }\n")
    assert native.build_source(source) != before


def test_a_changed_header_becomes_another_program(source: Path) -> None:
    before = native.build_source(source)
    (source.parent / "limits.h").write_text("#define LIMIT 1\n")
    assert native.build_source(source) != before


def test_a_refused_source_says_what_the_compiler_said(source: Path) -> None:
    source.write_text("int main(void) { return nothing; }\n")
    with pytest.raises(native.BuildError, match="nothing"):
        native.build_source(source)


def test_a_refused_source_leaves_nothing_behind(source: Path) -> None:
    source.write_text("broken")
    with pytest.raises(native.BuildError):
        native.build_source(source)
    assert not [f for f in native.cache_directory().rglob("*") if f.is_file()]


def test_an_unknown_program_is_named() -> None:
    with pytest.raises(native.BuildError, match="nonesuch"):
        native.build("nonesuch")
