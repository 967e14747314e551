"""What ingero-gpusim brings is taken where it fits; else what is here is compiled, and else the way out is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ingero import __version__
from ingero.demo import prebuilt
from ingero.demo.gpusim import build
from ingero.demo.workloads import native

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs an ingero-gpusim of empty files, of these sources unless others are named."""

    def installed(version: str = __version__, sources: str | None = None) -> Path:
        metadata = tmp_path / f"ingero_gpusim-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: ingero-gpusim\nVersion: {version}\n")
        files = tmp_path / "ingero_gpusim"
        for folder in (prebuilt.LIBRARIES, prebuilt.PROGRAMS):
            (files / folder).mkdir(parents=True)
        for name in ("hog", "libminiaten.so"):
            (files / prebuilt.PROGRAMS / name).touch()
        (files / prebuilt.KEY).write_text(f"{prebuilt.digest() if sources is None else sources}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return files

    return installed


@pytest.fixture
def in_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sources are here."""
    monkeypatch.setattr(prebuilt, "has_sources", lambda: False)
    monkeypatch.setattr(prebuilt, "digest", lambda: "")


def test_libraries_that_fit_are_taken_without_a_compiler(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = install()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.why_not_here() == ""
    assert build.build() == files / "lib"


def test_programs_that_fit_are_taken_and_the_others_are_compiled(install: Install, tmp_path: Path) -> None:
    files = install()
    faults, minitorch = prebuilt.SOURCES / "faults", prebuilt.SOURCES / "workloads" / "minitorch"
    assert native.build_source(faults / "hog.c") == files / "programs" / "hog"
    assert native.build_source(minitorch / "miniaten.c", shared=True) == files / "programs" / "libminiaten.so"
    assert prebuilt.program(faults / "writer.c") is None
    assert prebuilt.program(tmp_path / "hog.c") is None, "the name of another's file says nothing"


@pytest.mark.usefixtures("in_a_wheel")
def test_a_wheel_compares_the_version_only(install: Install) -> None:
    files = install(sources="of whatever the wheel was made of")
    assert build.build() == files / "lib"


def test_libraries_of_other_sources_than_those_here_are_not_taken(install: Install) -> None:
    install(sources="others")
    assert prebuilt.folder() is None
    assert prebuilt.why_not() == "ingero-gpusim is of other sources than those here"


def test_another_version_is_not_taken_and_both_are_named(install: Install) -> None:
    install(version="9.9.9")
    assert prebuilt.folder() is None
    assert prebuilt.why_not() == f"ingero-gpusim is 9.9.9, ingero is {__version__}"


def test_a_damaged_one_is_not_taken(install: Install) -> None:
    (install() / prebuilt.KEY).unlink()
    assert prebuilt.folder() is None
    assert "damaged" in prebuilt.why_not()


@pytest.mark.usefixtures("in_a_wheel")
def test_a_wheel_alone_names_the_extra_whatever_compiler_there_is(tmp_path: Path) -> None:
    assert build.why_not_here() == "ingero-gpusim is not installed: pip install 'ingero[demo]'"
    with pytest.raises(build.BuildError, match="its sources are not here") as error:
        build.build(tmp_path / "nowhere_else")  # what was built here before lies in the user's cache
    assert "pip install 'ingero[demo]'" in error.value.hint


def test_sources_without_a_compiler_name_both_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.why_not_here() == ("no gcc or clang, and ingero-gpusim is not installed: pip install 'ingero[demo]'")


def test_a_program_of_which_nothing_is_here_names_the_extra() -> None:
    with pytest.raises(native.BuildError, match=r"no gone\.c here") as error:
        native.build_source(prebuilt.SOURCES / "faults" / "gone.c")
    assert error.value.hint == "pip install 'ingero[demo]'"
