"""Makes the schemas beside it, from packages that hold the whole ones: `python trim.py FOLDER`.

FOLDER is where `pip install --target FOLDER kubernetes-validate==1.37.0 cloudcoil-models-prometheus-operator==0.80.1.0`
put them. Kept are the kinds that the chart makes, without descriptions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VERSIONS = ("1.29", "1.33", "1.37")  # 1.29: AppArmor by annotation
KINDS = ("configmap-v1", "daemonset-apps-v1", "namespace-v1", "networkpolicy-networking-v1", "service-v1",
         "serviceaccount-v1")  # fmt: skip
HERE = Path(__file__).parent


def without_descriptions(node: Any) -> Any:
    """The node; of properties that are named so, too, only the texts are left out."""
    if isinstance(node, list):
        return [without_descriptions(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        name: {key: without_descriptions(one) for key, one in value.items()}
        if name in ("properties", "definitions", "$defs") and isinstance(value, dict)
        else without_descriptions(value)
        for name, value in node.items()
        if not (name in ("description", "title") and isinstance(value, str))
        and not name.startswith(("x-", "$id", "$schema"))
    }


def with_local_references(node: Any, met: set[str]) -> Any:
    """References of any file are references to definitions; met: their names."""
    if isinstance(node, list):
        return [with_local_references(one, met) for one in node]
    if not isinstance(node, dict):
        return node
    changed = {}
    for name, value in node.items():
        if name == "$ref" and isinstance(value, str):
            met.add(value.rpartition("/")[2])
            changed[name] = f"#/definitions/{value.rpartition('/')[2]}"
        else:
            changed[name] = with_local_references(value, met)
    return changed


def kubernetes(folder: Path) -> dict[str, Any]:
    """One schema with all that the kinds need; a kind has its own name, such as DaemonSet."""
    every = json.loads((folder / "_definitions.json").read_text())["$defs"]
    definitions: dict[str, Any] = {}
    wanted: set[str] = set()
    for name in KINDS:
        schema = json.loads((folder / f"{name}.json").read_text())
        [kind] = schema["properties"]["kind"]["enum"]
        definitions[kind] = with_local_references(without_descriptions(schema), wanted)
    while missing := wanted - definitions.keys():
        for name in missing:
            definitions[name] = with_local_references(without_descriptions(every[name]), wanted)
    return {"definitions": definitions}


def monitors() -> dict[str, Any]:
    """Of the Prometheus operator's models: what they do not name is refused."""
    from cloudcoil.models.prometheus_operator import v1  # noqa: PLC0415  # only here, from FOLDER

    definitions: dict[str, Any] = {}
    for kind in (v1.PodMonitor, v1.ServiceMonitor):
        schema = without_descriptions(kind.model_json_schema(by_alias=True))
        definitions |= schema.pop("$defs", {})
        definitions[kind.__name__] = schema
    for schema in definitions.values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return {"definitions": json.loads(json.dumps(definitions).replace("#/$defs/", "#/definitions/"))}


def main() -> None:
    """Writes each beside this file."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    whole = {f"v{version}": kubernetes(_schemas(folder, version)) for version in VERSIONS}
    whole["monitors"] = monitors()
    for name, schema in whole.items():
        (HERE / f"{name}.json").write_text(json.dumps(schema, separators=(",", ":"), sort_keys=True) + "\n")


def _schemas(folder: Path, version: str) -> Path:
    return folder / "kubernetes_validate" / "kubernetes-json-schema" / f"v{version}.0-local-strict"


if __name__ == "__main__":
    main()
