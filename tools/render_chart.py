"""Renders the Helm chart: what its values make, to be looked at and tested, and the manifests for those without Helm.

Writes a file for each set of values in tests/data/chart/values, deploy/kubernetes/ingero.yaml, and a digest of all
that they were made of, by which a test sees without Helm that they are of today. `helm` is the one on PATH, else
build/go/bin/helm; --build makes that with Go, which takes minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "ingero"
DATA = ROOT / "tests" / "data" / "chart"
MANIFESTS = ROOT / "deploy" / "kubernetes" / "ingero.yaml"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
NEWEST, BEFORE_APPARMOR_FIELDS = "1.37.0", "1.29.0"
OLD_CLUSTERS = {"before-linux-6.6"}
_BUILT = ROOT / "build" / "go" / "bin" / "helm"
_OF_HELM = re.compile(r"^ +(?:helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n|^# Source: .*\n", re.MULTILINE)
_HEAD = "# Made of the chart by tools/render_chart.py; do not edit. Change what you need in an overlay of your own.\n"


def find_helm() -> str | None:
    """The program, if it is here."""
    return shutil.which("helm") or (str(_BUILT) if _BUILT.exists() else None)


def digest() -> str:
    """Of the chart and the sets of values."""
    whole = hashlib.sha256()
    for path in sorted([*CHART.rglob("*"), *(DATA / "values").iterdir()]):
        if path.is_file():
            content = path.read_bytes()
            whole.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def render(helm: str, values: Path | None, *more: str, kubernetes: str = NEWEST) -> str:
    """What a set of values makes.

    Raises:
        subprocess.CalledProcessError: helm refuses it; stderr says why.
    """
    command = [helm, "template", "ingero", str(CHART), "--namespace", "ingero", "--kube-version", kubernetes, *more]
    command += ["--values", str(values)] if values else []
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def files(helm: str) -> dict[Path, str]:
    """All that is written."""
    made = {}
    for values in sorted((DATA / "values").iterdir()):
        kubernetes = BEFORE_APPARMOR_FIELDS if values.stem in OLD_CLUSTERS else NEWEST
        made[DATA / "rendered" / values.name] = render(helm, values, kubernetes=kubernetes)
    plain = render(helm, None, "--set", "namespace.create=true")
    made[MANIFESTS] = _HEAD + _OF_HELM.sub("", plain)
    made[DATA / "digest.txt"] = digest() + "\n"
    return made


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true", help="build helm if it is not here")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something differs")
    options = parser.parse_args()
    if find_helm() is None and options.build:
        subprocess.run(["go", "install", HELM], check=True, env=os.environ | {"GOBIN": str(_BUILT.parent)})
    helm = find_helm()
    if helm is None:
        sys.exit("no helm: install it, or make chart (needs Go; takes minutes)")
    made = files(helm)
    if options.check:
        old = [
            str(path.relative_to(ROOT)) for path, text in made.items() if not path.exists() or path.read_text() != text
        ]
        sys.exit(f"not up to date: {', '.join(old)}; make chart" if old else 0)
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
