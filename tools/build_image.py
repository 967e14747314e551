"""Builds the container image without a daemon: `build_image.py OUT WHEEL...`, an OCI layout with an image per machine.

The files come from deploy/docker/make_root.sh, what runs in them from the last stage of deploy/docker/Dockerfile. With
SOURCE_DATE_EPOCH the same files give the same bytes. `skopeo copy oci:OUT docker://...` puts it into a registry.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_DURATIONS = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod"}


def run_configuration(dockerfile: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """The run configuration of the image, from the last stage of the Dockerfile.

    Raises:
        ValueError: it has an instruction that is not known here.
    """
    made: dict[str, Any] = {"Env": [], "Labels": {}}
    for name, rest in _instructions(dockerfile.rpartition("\nFROM ")[2]):
        text = re.sub(r"\$(\w+)", lambda found: arguments[found[1]], rest)
        if name == "ENV":
            made["Env"].append(shlex.split(text)[0])
        elif name == "LABEL":
            key, _, value = shlex.split(text)[0].partition("=")
            made["Labels"][key] = value
        elif name == "VOLUME":
            made["Volumes"] = {folder: {} for folder in json.loads(text)}
        elif name == "WORKDIR":
            made["WorkingDir"] = text
        elif name in ("ENTRYPOINT", "CMD"):
            made[name.capitalize()] = json.loads(text)
        elif name == "HEALTHCHECK":
            made["Healthcheck"] = _health(text)
        elif name not in ("ARG", "COPY"):
            raise ValueError(f"{name} is not understood")
    return made


def _instructions(stage: str) -> Iterator[tuple[str, str]]:
    for line in stage.replace("\\\n", " ").splitlines()[1:]:
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def _health(text: str) -> dict[str, Any]:
    options, _, command = text.partition(" CMD ")
    made: dict[str, Any] = {"Test": ["CMD", *json.loads(command)]}
    for name, value in re.findall(r"--([\w-]+)=(\w+)", options):
        if name == "retries":
            made["Retries"] = int(value)
        else:
            made[_DURATIONS[name]] = int(value.removesuffix("s")) * 1_000_000_000
    return made


class Layout:
    """An OCI layout in the making. sync interval: unix time that everything in it bears."""

    def __init__(self, folder: Path, sync_interval: int) -> None:
        self._folder, self._sync_interval = folder, sync_interval
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        self._manifests: list[dict[str, Any]] = []

    def add(self, root: Path, machine: str, configuration: Mapping[str, Any]) -> int:
        """An image of one layer with the files below `root`; returns the layer's size in bytes."""
        layer, diff_id = self._layer(root)
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._sync_interval))
        image = {
            "created": created,
            "architecture": MACHINES[machine],
            "os": "linux",
            "config": configuration,
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": created, "created_by": "tools/build_image.py"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._blob(_json(image), "application/vnd.oci.image.config.v1+json"),
            "layers": [layer],
        }
        platform = {"architecture": MACHINES[machine], "os": "linux"}
        self._manifests.append({**self._blob(_json(manifest), _MANIFEST), "platform": platform})
        return int(layer["size"])

    def finish(self, name: str) -> None:
        """One name for all machines."""
        kind = "application/vnd.oci.image.index.v1+json"
        every = self._blob(_json({"schemaVersion": 2, "mediaType": kind, "manifests": self._manifests}), kind)
        every["annotations"] = {"org.opencontainers.image.ref.name": name}
        (self._folder / "index.json").write_bytes(_json({"schemaVersion": 2, "mediaType": kind, "manifests": [every]}))
        (self._folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))

    def _blob(self, content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self._blobs / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def _layer(self, root: Path) -> tuple[dict[str, Any], str]:
        whole = self._folder / "layer"
        with whole.open("wb") as file:
            packed = _Summed(file)
            with gzip.GzipFile("", "wb", 9, packed, mtime=0) as plain:  # type: ignore[arg-type]  # all that it calls
                unpacked = _Summed(plain)
                with tarfile.open(fileobj=unpacked, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
                        archive.add(path, f"./{path.relative_to(root)}", recursive=False, filter=self._without_names)
        digest = packed.sum.hexdigest()
        whole.rename(self._blobs / digest)
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        layer = {"mediaType": kind, "digest": f"sha256:{digest}", "size": (self._blobs / digest).stat().st_size}
        return layer, f"sha256:{unpacked.sum.hexdigest()}"

    def _without_names(self, entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uname, entry.gname = min(int(entry.mtime), self._sync_interval), "", ""
        return entry


class _Summed:
    """A file that sums up what is written to it."""

    def __init__(self, file: Any) -> None:
        self._file, self.sum = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.sum.update(content)
        return int(self._file.write(content))

    def flush(self) -> None:
        self._file.flush()


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def build(out: Path, wheels: Sequence[Path], *, commit: str) -> None:
    """Makes the roots and the layout."""
    version = wheels[0].name.split("-")[1]
    sync_interval = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(sync_interval))
    arguments = {"VERSION": version, "COMMIT": commit, "BUILD_DATE": created}
    configuration = run_configuration(DOCKERFILE.read_text(), arguments)
    layout = Layout(out, sync_interval)
    for wheel in wheels:
        machine = next(one for one in MACHINES if wheel.name.endswith(f"_{one}.whl"))
        with TemporaryDirectory(prefix="ingero-image-") as scratch:
            root = Path(scratch, "root")
            subprocess.run([DOCKERFILE.with_name("make_root.sh"), wheel, root], check=True)
            print(f"{machine}: {layout.add(root, machine, configuration) / 1e6:.1f} MB")
    layout.finish(version)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("wheels", type=Path, nargs="+", help="of `make wheels`, one per machine")
    options = parser.parse_args()
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    build(options.out, options.wheels, commit=commit)


if __name__ == "__main__":
    main()
