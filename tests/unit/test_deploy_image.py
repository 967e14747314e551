"""The image: what the Dockerfile and the builder without a daemon say of it, and the layout that the latter writes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ingero.store.opening.locations import DATABASE_VARIABLE
from tests.unit.ingero_lines import parse

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import build_image  # noqa: E402  # a tool, not of the package

DOCKERFILE = build_image.DOCKERFILE.read_text()
ARGUMENTS = {"VERSION": "1.2.3", "COMMIT": "abc1234", "BUILD_DATE": "2026-11-26T00:00:00Z"}


def test_the_image_records_where_a_volume_is_and_its_health_is_whether_it_does() -> None:
    made = build_image.run_configuration(DOCKERFILE, ARGUMENTS)
    variables = dict(one.split("=", 1) for one in made["Env"])
    database = Path(variables[DATABASE_VARIABLE])
    assert made["Volumes"] == {str(database.parent): {}}
    assert made["Entrypoint"] == ["/usr/bin/ingero"]
    parse(made["Cmd"])
    kind, program, *arguments = made["Healthcheck"]["Test"]
    assert (kind, [program], arguments) == ("CMD", made["Entrypoint"], ["check", "--recording"])
    parse(arguments)
    assert made["Healthcheck"]["Interval"] == 60_000_000_000
    assert "User" not in made, "root by default, whom capabilities are given to"


def test_its_labels_say_what_it_was_built_of() -> None:
    labels = build_image.run_configuration(DOCKERFILE, ARGUMENTS)["Labels"]
    said = {name.rpartition(".")[2]: value for name, value in labels.items()}
    assert (said["version"], said["revision"], said["created"]) == tuple(ARGUMENTS.values())
    assert labels["io.modelcontextprotocol.server.name"] == json.loads((ROOT / "server.json").read_text())["name"]


def test_an_instruction_that_the_builder_does_not_know_is_no_silent_difference() -> None:
    with pytest.raises(ValueError, match="USER"):
        build_image.run_configuration(f"{DOCKERFILE}USER 5\n", ARGUMENTS)


def a_root(folder: Path) -> Path:
    root = folder / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "ingero").write_text("#!/bin/sh\n")
    (root / "usr" / "bin" / "ingero").chmod(0o755)
    (root / "bin").symlink_to("usr/bin")
    return root


def blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    kind, _, digest = descriptor["digest"].partition(":")
    content = (layout / "blobs" / kind / digest).read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, descriptor["size"])
    return content


def test_every_part_of_the_layout_is_what_its_digest_says(tmp_path: Path) -> None:
    layout = build_image.Layout(tmp_path / "out", 1_700_000_000)
    for machine in build_image.MACHINES:
        layout.add(a_root(tmp_path / machine), machine, {"Cmd": ["trace"]})
    layout.finish("1.2.3")
    [named] = json.loads((tmp_path / "out/index.json").read_text())["manifests"]
    assert named["annotations"] == {"org.opencontainers.image.ref.name": "1.2.3"}
    manifests = json.loads(blob(tmp_path / "out", named))["manifests"]
    assert [one["platform"]["architecture"] for one in manifests] == ["amd64", "arm64"]
    for one in manifests:
        manifest = json.loads(blob(tmp_path / "out", one))
        image = json.loads(blob(tmp_path / "out", manifest["config"]))
        plain = gzip.decompress(blob(tmp_path / "out", manifest["layers"][0]))
        assert image["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
        with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
            program = archive.getmember("./usr/bin/ingero")
            assert (program.mode, program.mtime, program.uname) == (0o755, 1_700_000_000, "")
            assert archive.getmember("./bin").linkname == "usr/bin"


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        layout = build_image.Layout(tmp_path / name, 1_700_000_000)
        layout.add(a_root(tmp_path / f"files-{name}"), "x86_64", {})
        layout.finish("1")
        found.append((tmp_path / name / "index.json").read_bytes())
    assert found[0] == found[1]
