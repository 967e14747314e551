"""install.sh, with a release of this test's own: signed, tampered with, installed, upgraded and removed again."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero import __version__

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "install.sh"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
# Stands for the program: says its version, and what it was called with.
PROGRAM = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
echo "$*" >> "$here/../called"
[ "$1" != version ] || echo "ingero {version} (commit abc, built 2026-11-26)"
"""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Its files lie in a folder, as a server would have them."""

    folder: Path
    key: Path
    version: str = "9.9.9"

    @property
    def name(self) -> str:
        return f"ingero_{self.version}_linux_{MACHINE}"

    @property
    def archive(self) -> Path:
        return self.folder / f"{self.name}.tar.gz"

    def pack(self, *more: tuple[str, bytes], program: str = PROGRAM) -> None:
        with tarfile.open(self.archive, "w:gz") as archive:
            content = program.format(version=self.version).encode()
            for name, text in ((f"{self.name}/bin/ingero", content), *more):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode, entry.uid = len(text), 0o755, 4711
                archive.addfile(entry, io.BytesIO(text))

    def sign(self, key: Path | None = None) -> None:
        sums = self.folder / "SHA256SUMS"
        sums.write_text(f"{self.sha256}  {self.archive.name}\n")
        (self.folder / "SHA256SUMS.sig").unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-Y", "sign", "-f", key or self.key, "-n", "file", sums]
        subprocess.run(command, check=True, capture_output=True)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.archive.read_bytes()).hexdigest()


def make_key(folder: Path, name: str) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / name], check=True, capture_output=True
    )
    return folder / name


@pytest.fixture
def release(tmp_path: Path) -> Release:
    (tmp_path / "release").mkdir()
    made = Release(folder=tmp_path / "release", key=make_key(tmp_path, "key"))
    made.pack()
    made.sign()
    return made


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, release: Release) -> Run:
    def install(*arguments: object, key: bool = True) -> subprocess.CompletedProcess[str]:
        given = ["--prefix", tmp_path / "prefix", *(["--key", release.key.with_suffix(".pub")] if key else [])]
        given += ["--version", release.version, "--from", release.folder] if "--uninstall" not in arguments else []
        return subprocess.run(
            ["sh", SCRIPT, *map(str, given), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PREFIX": "/nonexistent"},
        )

    return install


def program(tmp_path: Path) -> Path:
    return tmp_path / "prefix/bin/ingero"


def nothing_was_installed(tmp_path: Path) -> bool:
    trees = tmp_path / "prefix/lib/ingero-releases"
    return not program(tmp_path).exists() and not any(trees.iterdir() if trees.exists() else ())


def test_a_signed_release_is_installed_and_runs(tmp_path: Path, run: Run, release: Release) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    said = subprocess.run([program(tmp_path), "version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"ingero {release.version} ")
    tree = program(tmp_path).resolve().parent.parent
    assert tree.name == release.version
    assert tree.stat().st_uid == os.getuid(), "not whom the archive names"
    assert [path.name for path in tree.parent.iterdir() if path.name.startswith(".new")] == []


def test_a_url_of_a_file_is_taken_too(run: Run, release: Release) -> None:
    assert run("--from", f"file://{release.folder}").returncode == 0


def test_running_it_again_changes_nothing(tmp_path: Path, run: Run) -> None:
    run()
    called = program(tmp_path).resolve().parent.parent / "called"
    before = (called.read_text(), program(tmp_path).resolve())
    done = run()
    assert (done.returncode, "is there already" in done.stdout) == (0, True)
    assert (called.read_text(), program(tmp_path).resolve()) == before


def change_the_archive(release: Release) -> None:
    release.pack(program=PROGRAM + "\ntouch /nonexistent\n")


def sign_by_another(release: Release) -> None:
    release.sign(make_key(release.folder, "another"))


def change_the_sums(release: Release) -> None:
    release.pack(program=PROGRAM + "\n")
    (release.folder / "SHA256SUMS").write_text(f"{release.sha256}  {release.archive.name}\n")


def leave_the_signature_out(release: Release) -> None:
    (release.folder / "SHA256SUMS.sig").unlink()


def name_another_file(release: Release) -> None:
    release.archive.rename(release.archive.with_name("x.tar.gz"))
    shutil.copy(release.archive.with_name("x.tar.gz"), release.archive)
    text = (release.folder / "SHA256SUMS").read_text().replace(release.archive.name, "x.tar.gz")
    (release.folder / "SHA256SUMS").write_text(text)
    (release.folder / "SHA256SUMS.sig").unlink()
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", release.key, "-n", "file", release.folder / "SHA256SUMS"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (change_the_archive, "checksum"),
        (change_the_sums, "signature"),
        (sign_by_another, "signature"),
        (leave_the_signature_out, "could not be had"),
        (name_another_file, "does not name"),
    ],
)
def test_what_is_not_right_is_refused_before_anything_of_it_runs(
    tmp_path: Path, run: Run, release: Release, tamper: Callable[[Release], None], said: str
) -> None:
    tamper(release)
    done = run()
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert nothing_was_installed(tmp_path)


@pytest.mark.parametrize("name", ["../../outside", "/outside", "another/file", "ingero_9x9.9_linux_amd64/file"])
def test_files_outside_of_its_folder_are_refused_also_when_they_are_signed(
    tmp_path: Path, run: Run, release: Release, name: str
) -> None:
    release.pack((name, b"x"))
    release.sign()
    done = run()
    assert (done.returncode, "outside of its folder" in done.stderr) == (2, True), done.stderr
    assert nothing_was_installed(tmp_path)


def test_without_a_key_it_trusts_a_checksum_that_it_is_given_and_nothing_else(
    tmp_path: Path, run: Run, release: Release
) -> None:
    refused = run(key=False)
    assert (refused.returncode, "--key FILE, or --sha256" in refused.stderr) == (2, True)
    wrong = run("--sha256", "0" * 64, key=False)
    assert (wrong.returncode, "checksum" in wrong.stderr) == (2, True)
    assert nothing_was_installed(tmp_path)
    assert run("--sha256", release.sha256, key=False).returncode == 0


def test_a_release_that_is_another_version_is_refused(tmp_path: Path, run: Run, release: Release) -> None:
    release.pack(program=PROGRAM.replace("{version}", "1.2.3"))
    release.sign()
    done = run()
    assert (done.returncode, "says that it is ingero 1.2.3" in done.stderr) == (2, True)
    assert nothing_was_installed(tmp_path)


@pytest.mark.parametrize("other", ["file", "link"])
def test_a_program_of_somebody_else_is_left_alone(tmp_path: Path, run: Run, other: str) -> None:
    program(tmp_path).parent.mkdir(parents=True)
    if other == "file":
        program(tmp_path).write_text("mine")
    else:
        program(tmp_path).symlink_to("../lib/ingero/bin/ingero")
    for arguments in ((), ("--uninstall",)):
        run(*arguments)
        assert program(tmp_path).is_symlink() == (other == "link")
        assert program(tmp_path).is_symlink() or program(tmp_path).read_text() == "mine"


def test_an_upgrade_keeps_the_release_before_and_no_older_one(tmp_path: Path, run: Run, release: Release) -> None:
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        older = Release(folder=release.folder, key=release.key, version=version)
        older.pack()
        older.sign()
        assert run("--version", version).returncode == 0
    trees = tmp_path / "prefix/lib/ingero-releases"
    assert {path.name for path in trees.iterdir()} == {"1.1.0", "1.2.0", "current"}
    assert program(tmp_path).resolve().parent.parent.name == "1.2.0"


def test_what_is_removed_is_the_release_and_not_the_recordings(tmp_path: Path, run: Run) -> None:
    run()
    recording = tmp_path / "home/.ingero/ingero.db"
    recording.parent.mkdir(parents=True)
    recording.write_text("kept")
    assert run("--uninstall").returncode == 0
    assert run("--uninstall").returncode == 0, "a second time"
    assert (nothing_was_installed(tmp_path), recording.read_text()) == (True, "kept")


@pytest.mark.skipif(os.getuid() != 0, reason="only root installs services")
def test_root_gets_a_service(tmp_path: Path, run: Run) -> None:
    assert run("--systemd").returncode == 0
    assert (program(tmp_path).resolve().parent.parent / "called").read_text().splitlines() == [
        "version",
        "service install",
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_somebody_else_installs_as_far_as_they_can_and_is_told_what_needs_root(
    tmp_path_factory: pytest.TempPathFactory, release: Release
) -> None:
    folder = tmp_path_factory.mktemp("user")
    script = folder / "install.sh"
    shutil.copy(SCRIPT, script)
    shutil.copytree(release.folder, folder / "release")
    shutil.copy(release.key.with_suffix(".pub"), folder / "key.pub")
    (folder / "prefix").mkdir()
    for path in (folder, *folder.parents[: len(folder.parents) - 2]):
        path.chmod(path.stat().st_mode | stat.S_IROTH | stat.S_IXOTH)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    arguments = ["--prefix", "prefix", "--version", "9.9.9", "--from", "release", "--key", "key.pub", "--systemd"]
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "install.sh", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert f"As root: {folder}/prefix/bin/ingero service install" in done.stdout
    assert (folder / "prefix/bin/ingero").resolve().parent.parent.joinpath("called").read_text() == "version\n"


@pytest.mark.parametrize(
    "arguments",
    [("--frobnicate",), ("--version", "../x"), ("--version", ""), ("--sha256", "12"), ("--from", "http://a.example")],
    ids=" ".join,
)
def test_what_it_does_not_understand_it_refuses(tmp_path: Path, run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2
    assert nothing_was_installed(tmp_path)


def test_it_installs_the_release_that_it_is_of() -> None:
    assert f"\nVERSION={__version__}\n" in SCRIPT.read_text()


def test_its_help_names_each_option() -> None:
    done = subprocess.run(["sh", SCRIPT, "--help"], capture_output=True, text=True, check=True)
    for option in ("--version", "--prefix", "--systemd", "--from", "--key", "--sha256", "--uninstall"):
        assert option in done.stdout
