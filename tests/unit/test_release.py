"""What `make release` puts together, without what takes minutes: archives, checksums, an installer that takes them."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ingero import __version__
from ingero.cli.service.units import sysusers, units
from tests.unit.test_install_script import MACHINE, PROGRAM, make_key

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import release  # noqa: E402  # a tool, not of the package

MADE_KNOWN = ["systemd-sysusers ingero.conf", "systemctl daemon-reload"]
NAME = f"ingero_{__version__}_linux_{MACHINE}"


def a_tree(folder: Path) -> Path:
    tree = folder / NAME
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "ingero").write_text(PROGRAM.format(version=__version__))
    (tree / "bin" / "ingero").chmod(0o755)
    return tree


def test_the_installer_of_a_release_takes_that_release_and_no_other(tmp_path: Path) -> None:
    key, stranger = make_key(tmp_path, "key"), make_key(tmp_path, "stranger")
    made = release.Release(tmp_path / "dist", 1_700_000_000)
    release.pack(a_tree(tmp_path), tmp_path / "dist" / f"{NAME}.tar.gz", 1_700_000_000)
    made.checksums_and_installer(key)
    install = ["sh", tmp_path / "dist/install.sh", "--from", tmp_path / "dist", "--prefix"]
    done = subprocess.run([*install, tmp_path / "a"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a/bin/ingero").exists()
    sums = tmp_path / "dist/SHA256SUMS"
    sums.with_name("SHA256SUMS.sig").unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", stranger, "-n", "file", sums], check=True, capture_output=True
    )
    done = subprocess.run([*install, tmp_path / "b"], capture_output=True, text=True, check=False)
    assert (done.returncode, "signature" in done.stderr) == (2, True)


def test_without_a_key_nothing_claims_to_be_signed(tmp_path: Path) -> None:
    made = release.Release(tmp_path, 1_700_000_000)
    (tmp_path / "ingero-1.whl").write_text("a")
    (tmp_path / "SHA256SUMS.sig").write_text("of before")
    made.checksums_and_installer(None)
    assert (tmp_path / "install.sh").read_text() == (ROOT / "install.sh").read_text()
    assert not (tmp_path / "SHA256SUMS.sig").exists()
    sums = dict(line.split()[::-1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {"ingero-1.whl", "install.sh"}
    assert sums["ingero-1.whl"] == hashlib.sha256(b"a").hexdigest()


def test_the_same_tree_makes_the_same_bytes_of_nobody(tmp_path: Path) -> None:
    for name in ("a", "b"):
        release.pack(a_tree(tmp_path / name), tmp_path / f"{name}.tar.gz", 1_700_000_000)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert {(entry.uid, entry.uname, entry.name.partition("/")[0]) for entry in archive} == {(0, "", NAME)}


@pytest.mark.skipif(platform.machine() not in release._LOADERS, reason="there is no release for this machine")
def test_a_tree_finds_its_own_files_wherever_it_lies(tmp_path: Path) -> None:
    """A root with the layout of the image, in which the loader is a script that says how it was called."""
    root = tmp_path / "root"
    libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    for folder in (libraries, root / f"usr/lib/python{release._PYTHON}", root / "opt/ingero", root / "usr/bin"):
        folder.mkdir(parents=True)
    loader = libraries / release._LOADERS[platform.machine()]
    loader.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (libraries / "libz.so.1.3").write_text("z")
    (libraries / "libz.so.1").symlink_to("libz.so.1.3")
    (root / f"usr/bin/python{release._PYTHON}").write_text("python")
    release.make_tree(root, platform.machine(), tmp_path / "made" / NAME)
    moved = (tmp_path / "made" / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(moved / "bin/ingero")
    said = subprocess.run(
        [tmp_path / "link", "explain"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said == [
        *("--argv0", f"{moved}/bin/python", "--library-path", f"{moved}/lib", f"{moved}/libexec/python"),
        *("-I", "-B", f"{moved}/libexec/ingero.py", "explain"),
    ]
    assert not (moved / "lib/libz.so.1").is_symlink()


def test_without_nfpm_it_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "find_nfpm", lambda: None)
    with pytest.raises(release.CannotMakeError, match="--build-tools"):
        release.package(a_tree(tmp_path), MACHINE, tmp_path)


@pytest.mark.skipif(release.find_nfpm() is None, reason="nfpm is not here (tools/release.py --build-tools)")
def test_a_package_has_the_tree_and_a_program_that_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    release.package(a_tree(tmp_path), MACHINE, tmp_path / "packages")
    [deb] = (tmp_path / "packages").glob("*.deb")
    assert len(list((tmp_path / "packages").glob("*.rpm"))) == 1
    listed = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split(None, 5)[5] for line in listed}
    assert {"./usr/bin/ingero -> /usr/lib/ingero/bin/ingero", "./usr/lib/ingero/bin/ingero"} <= names
    assert not any(name.startswith(("./var", "./etc")) for name in names), "recordings and settings are not its own"


@pytest.mark.skipif(release.find_nfpm() is None, reason="nfpm is not here (tools/release.py --build-tools)")
def test_a_package_has_the_units_and_enables_nothing(tmp_path: Path) -> None:
    release.package(a_tree(tmp_path), MACHINE, tmp_path)
    [deb] = tmp_path.glob("*.deb")
    subprocess.run(["dpkg-deb", "-R", deb, tmp_path / "unpacked"], check=True)
    for name, text in {**units(), "ingero.conf": sysusers()}.items():
        [path] = (tmp_path / "unpacked").rglob(name)
        assert path.parent.name == ("sysusers.d" if name.endswith(".conf") else "system")
        assert (path.read_text(), path.stat().st_mode & 0o777) == (text, 0o644)
    slurm = tmp_path / "unpacked/usr/share/ingero/slurm/record_job.sh"
    assert (slurm.read_bytes(), slurm.stat().st_mode & 0o777) == (release._SLURM.read_bytes(), 0o755)
    links = [path for path in (tmp_path / "unpacked").rglob("*") if path.is_symlink()]
    assert [path.name for path in links] == ["ingero"], "a link would enable a unit"
    scripts = {path.name: path.read_text() for path in (tmp_path / "unpacked/DEBIAN").iterdir()}
    assert {"control", "postinst", "prerm", "postrm"} <= scripts.keys()
    for name, text in scripts.items():
        assert not re.search(r"systemctl\b.*\b(?:enable|start|restart|preset)\b(?<!try-restart)", text), name


@pytest.fixture
def fake_systemd(tmp_path: Path) -> Path:
    """Programs of systemd's names that only note how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("systemctl", "systemd-sysusers"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("script", "word", "calls"),
    [
        ("postinstall", "configure", [*MADE_KNOWN, "systemctl try-restart ingero.service ingero-dashboard.service"]),
        ("postinstall", "1", [*MADE_KNOWN, "systemctl try-restart ingero.service ingero-dashboard.service"]),
        ("preremove", "upgrade", []),
        ("preremove", "1", []),
        ("preremove", "remove", ["systemctl disable --now ingero.service ingero-dashboard.service"]),
        ("preremove", "0", ["systemctl disable --now ingero.service ingero-dashboard.service"]),
        ("postremove", "remove", ["systemctl daemon-reload"]),
    ],
)
def test_a_packages_script_stops_what_goes_and_starts_nothing(
    script: str, word: str, calls: list[str], tmp_path: Path, fake_systemd: Path
) -> None:
    path = ROOT / "deploy/packages" / f"{script}.sh"
    text = path.read_text().replace("/run/systemd/system", str(fake_systemd))
    environment = {"PATH": f"{fake_systemd}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", text, script, word], env=environment, check=True)
    made = tmp_path / "calls"
    assert (made.read_text().splitlines() if made.exists() else []) == calls


def test_wheels_of_both_packages_are_made_for_both_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[object], dict[str, str]]] = []
    monkeypatch.setattr(release, "_run", lambda command, environment: calls.append((command, environment)))
    release.Release(tmp_path, 1_700_000_000).wheels()
    *wheels, _sdist = calls
    assert [environment["INGERO_WHEEL"] for _, environment in wheels] == ["x86_64", "aarch64"]
    assert all({ROOT, ROOT / "gpusim"} <= set(command) for command, _ in wheels)
    assert {environment["SOURCE_DATE_EPOCH"] for _, environment in calls} == {"1700000000"}


def test_the_workflow_makes_what_make_release_makes_and_stores_no_password() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "make release KEY=" in text
    assert f"helm.sh/helm/v3/cmd/helm@{release.render_chart.HELM.rpartition('@')[2]}" in text
    assert "permissions: {}" in text
    assert [word for word in ("PYPI_TOKEN", "PASSWORD", "pull_request_target") if word in text] == []
