"""Makes a release into `dist/`, as `make release` does.

Wheels, source archive, image, trees with a Python of their own and packages of them, bills of materials, chart,
checksums, installer. Root, mmdebstrap and nfpm (--build-tools) are needed for the image, the trees and the packages,
Helm (`make chart`) for the chart; what cannot be made is said, and the exit code is then 1. With SOURCE_DATE_EPOCH the
same sources give the same bytes. --key signs the checksums (ssh-keygen) and puts the public key into the installer;
without it the release is not signed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import build_image
import build_libraries
import render_chart

from ingero import __version__
from ingero.cli.service.units import SYSUSERS, units

ROOT = Path(__file__).resolve().parent.parent
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_PYTHON = "3.13"  # of deploy/docker/make_root.sh
_HERE = 'here=$(dirname "$(dirname "$(readlink -f "$0")")")'
_RUN_PYTHON = f"""#!/bin/sh
{_HERE}
exec "$here/lib/{{loader}}" --argv0 "$here/bin/python" --library-path "$here/lib" "$here/libexec/python" "$@"
"""
_RUN_INGERO = f"""#!/bin/sh
{_HERE}
exec "$here/bin/python" -I -B "$here/libexec/ingero.py" "$@"
"""
_MAIN = """import os
import sys

here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(here, "site"))
sys.argv[0] = os.path.join(here, "bin", "ingero")
from ingero.cli.main import main

main()
"""


NFPM = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"
_NFPM = ROOT / "build" / "go" / "bin" / "nfpm"
_UNITS, _SCRIPTS = ROOT / "deploy" / "systemd", ROOT / "deploy" / "packages"
_GPUSIM = ROOT / "gpusim"
_SLURM = ROOT / "deploy" / "slurm" / "record_job.sh"
_PLAIN = {"file_info": {"mode": 0o644}}
_PACKAGE = {
    "name": "ingero",
    "platform": "linux",
    "section": "admin",
    "maintainer": "ingero (https://github.com/ingero-io/ingero/issues)",
    "description": "Tells why a GPU is stalling: which call, how long, taken by whom, from which line of Python.",
    "homepage": "https://github.com/ingero-io/ingero",
    "license": "Apache-2.0",
}


class CannotMakeError(Exception):
    """A part of the release cannot be made here."""


def make_tree(root: Path, machine: str, tree: Path) -> None:
    """What runs on any host, from the files of the image: the C library comes along, and nothing is at a fixed path."""
    libraries = root / "usr" / "lib" / f"{machine}-linux-gnu"
    for folder in ("bin", "lib", "libexec"):
        (tree / folder).mkdir(parents=True)
    for path in sorted([*libraries.glob("*.so*"), *(root / "usr" / "lib").glob("*.so*")]):
        if not path.is_dir():
            shutil.copy(path, tree / "lib" / path.name)  # of a link, what it leads to
    if not (tree / "lib" / _LOADERS[machine]).exists():
        shutil.copy(next((root / "usr").glob(f"lib*/{_LOADERS[machine]}")), tree / "lib")
    (tree / "lib" / _LOADERS[machine]).chmod(0o755)
    shutil.copytree(root / "usr" / "lib" / f"python{_PYTHON}", tree / "lib" / f"python{_PYTHON}", symlinks=True)
    shutil.copytree(root / "opt" / "ingero", tree / "site", symlinks=True)
    shutil.copy(root / "usr" / "bin" / f"python{_PYTHON}", tree / "libexec" / "python")
    (tree / "libexec" / "ingero.py").write_text(_MAIN)
    for name, text in (("python", _RUN_PYTHON.format(loader=_LOADERS[machine])), ("ingero", _RUN_INGERO)):
        (tree / "bin" / name).write_text(text)
        (tree / "bin" / name).chmod(0o755)


def pack(tree: Path, archive: Path, sync_interval: int) -> None:
    """The tree under its own name, the same bytes for the same files."""

    def of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = min(int(entry.mtime), sync_interval)
        return entry

    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        made.add(tree, tree.name, recursive=False, filter=of_nobody)
        for path in sorted(tree.rglob("*"), key=lambda path: path.relative_to(tree).parts):
            made.add(path, f"{tree.name}/{path.relative_to(tree)}", recursive=False, filter=of_nobody)


def find_nfpm() -> str | None:
    """The program that makes packages, if it is here."""
    return shutil.which("nfpm") or (str(_NFPM) if _NFPM.exists() else None)


def package(tree: Path, machine: str, folder: Path) -> None:
    """A package for apt and one for dnf: the tree in /usr/lib/ingero, and units. machine: as Go names it.

    Raises:
        CannotMakeError: there is no nfpm, or it fails.
    """
    nfpm = find_nfpm()
    if nfpm is None:
        raise CannotMakeError("nfpm is needed for packages: tools/release.py --build-tools (Go; takes minutes)")
    contents = [
        {"src": str(tree), "dst": "/usr/lib/ingero", "type": "tree"},
        {"src": "/usr/lib/ingero/bin/ingero", "dst": "/usr/bin/ingero", "type": "symlink"},
        *({"src": str(_UNITS / name), "dst": f"/usr/lib/systemd/system/{name}", **_PLAIN} for name in units()),
        {"src": str(_SLURM), "dst": f"/usr/share/ingero/slurm/{_SLURM.name}", "file_info": {"mode": 0o755}},
        {"src": str(_UNITS / "ingero.sysusers"), "dst": f"/usr/lib/sysusers.d/{SYSUSERS}", **_PLAIN},
    ]
    scripts = {name: str(_SCRIPTS / f"{name}.sh") for name in ("postinstall", "preremove", "postremove")}
    wanted = _PACKAGE | {"version": __version__, "arch": machine, "contents": contents, "scripts": scripts}
    with TemporaryDirectory(prefix="ingero-package-") as scratch:
        configuration = Path(scratch, "nfpm.json")  # JSON is YAML
        configuration.write_text(json.dumps(wanted))
        for kind in ("deb", "rpm"):
            _run([nfpm, "package", "--config", configuration, "--packager", kind, "--target", folder])


class Release:
    """The parts, each written into one folder."""

    def __init__(self, folder: Path, sync_interval: int) -> None:
        self._folder, self._sync_interval = folder, sync_interval
        folder.mkdir(parents=True, exist_ok=True)

    def wheels(self) -> None:
        """Those of both packages for both machines, and the source archive, which has the sources of both."""
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(self._sync_interval)}
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", self._folder, ROOT, _GPUSIM]
        for machine in build_image.MACHINES:
            _run(pip, environment | {"INGERO_WHEEL": machine})
        _run([sys.executable, "-m", "build", "--sdist", "--outdir", self._folder, ROOT], environment)

    def image_and_trees(self) -> None:
        """An image for both machines, and a tree for each."""
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            raise CannotMakeError("root and mmdebstrap are needed: apt-get install mmdebstrap")
        commit = _git("describe", "--always", "--dirty", "--exclude=*")
        with TemporaryDirectory(prefix="ingero-release-") as scratch:
            layout = build_image.Layout(Path(scratch, "image"), self._sync_interval)
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._sync_interval))
            arguments = {"VERSION": __version__, "COMMIT": commit or "unknown", "BUILD_DATE": created}
            configuration = build_image.run_configuration(build_image.DOCKERFILE.read_text(), arguments)
            for machine, name in build_image.MACHINES.items():
                root = Path(scratch, machine)
                _run([build_image.DOCKERFILE.with_name("make_root.sh"), self._wheel(machine), root])
                layout.add(root, machine, configuration)
                tree = Path(scratch, f"ingero_{__version__}_linux_{name}")
                make_tree(root, machine, tree)
                pack(tree, self._folder / f"{tree.name}.tar.gz", self._sync_interval)
                self._write_bill(tree)
                package(tree, name, self._folder)
                shutil.rmtree(root)
                shutil.rmtree(tree)
            layout.finish(__version__)
            image = self._folder / f"ingero_{__version__}_image.oci.tar"
            with tarfile.open(image, "w", format=tarfile.PAX_FORMAT) as archive:
                for path in sorted(Path(scratch, "image").rglob("*")):
                    archive.add(path, path.relative_to(Path(scratch, "image")), recursive=False, filter=self._plain)

    def _write_bill(self, tree: Path) -> None:
        """The Python packages of a tree and the libraries in the wheel, as CycloneDX; not Debian's files."""
        bill = build_libraries.bill_of_materials()
        for package in sorted(distributions(path=[str(tree / "site")]), key=lambda package: package.name.lower()):
            bill["components"].append(
                {
                    "type": "library",
                    "name": package.name,
                    "version": package.version,
                    "purl": f"pkg:pypi/{package.name.lower()}@{package.version}",
                }
            )
        (self._folder / f"{tree.name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")

    def chart(self) -> None:
        """The Helm chart."""
        helm = render_chart.find_helm()
        if helm is None:
            raise CannotMakeError("helm is needed: make chart")
        _run([helm, "package", render_chart.CHART, "--destination", self._folder])

    def checksums_and_installer(self, key: Path | None) -> None:
        """Of all the above; signed, if there is a key, which the installer then asks for."""
        script = (ROOT / "install.sh").read_text()
        if key:
            public = " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])
            script = script.replace("\nKEY='' #", f"\nKEY='{public}' #")
        (self._folder / "install.sh").write_text(script)
        sums = self._folder / "SHA256SUMS"
        made = sorted(path for path in self._folder.iterdir() if path.name.startswith(("ingero", "install")))
        sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made))
        sums.with_name("SHA256SUMS.sig").unlink(missing_ok=True)
        if key:
            _run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", sums])

    def _wheel(self, machine: str) -> Path:
        return next(self._folder.glob(f"ingero-{__version__}-*_{machine}.whl"))

    def _plain(self, entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname, entry.gname, entry.mtime = "", "", self._sync_interval
        return entry


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _run(command: list[object], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(list(map(str, command)), env=environment, check=False)
    if done.returncode:
        raise CannotMakeError(f"{command[0]} ended with {done.returncode}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--build-tools", action="store_true", help="only build nfpm with Go, for packages")
    parser.add_argument("--key", type=Path, help="private key to sign with; KEY.pub lies beside it")
    options = parser.parse_args()
    if options.build_tools:
        _run(["go", "install", NFPM], os.environ | {"GOBIN": str(_NFPM.parent)})
        return
    sync_interval = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or time.time()
    release = Release(options.out.resolve(), int(sync_interval))
    parts: dict[str, Callable[[], None]] = {
        "wheels": release.wheels,
        "image and trees": release.image_and_trees,
        "chart": release.chart,
        "checksums and installer": lambda: release.checksums_and_installer(options.key),
    }
    missing = False
    for name, make in parts.items():
        print(f"release: {name}", flush=True)
        try:
            make()
        except (CannotMakeError, StopIteration) as error:
            missing = True
            print(f"release: no {name}: {error}", file=sys.stderr)
    subprocess.run(["ls", "-l", options.out], check=False)
    sys.exit(missing)


if __name__ == "__main__":
    main()
