"""The Helm chart: what it makes is valid, asks for no more than it needs, and the product takes its arguments.

What each set of values makes lies in tests/data/chart/rendered, so that it is tested without Helm; a digest says that
the chart has not changed since. Where Helm is, it is asked again.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ingero import __version__
from ingero.cli.config.file import read_config
from ingero.cli.config.option_table import BY_NAME
from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.main import cli
from tests.unit.discover.test_checks import rows_of
from tests.unit.ingero_lines import parse

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "ingero"
DATA = ROOT / "tests" / "data" / "chart"
sys.path.insert(0, str(ROOT / "tools"))
import render_chart  # noqa: E402  # a tool, not of the package

HELM = render_chart.find_helm()
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not here (make chart builds it, in minutes)")
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "tests/data/kubernetes").glob("*.json")}
VALUES = {path.stem: path for path in sorted((DATA / "values").iterdir())}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
EVERY_SET = pytest.mark.parametrize("name", VALUES)
FIVE = {"BPF", "PERFMON", "SYS_PTRACE", "CHECKPOINT_RESTORE", "DAC_READ_SEARCH"}

Object = dict[str, Any]


def objects(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


def rendered(name: str) -> list[Object]:
    return objects((DATA / "rendered" / f"{name}.yaml").read_text())


def pods(found: list[Object]) -> Iterator[Object]:
    return (one["spec"]["template"]["spec"] for one in found if one["kind"] == "DaemonSet")


def containers(found: list[Object]) -> Iterator[Object]:
    return (container for pod in pods(found) for container in pod["containers"])


def check(found: list[Object], kubernetes: str) -> None:
    """Raises jsonschema.ValidationError where an API server of that version would refuse or drop something."""
    for one in found:
        validator("monitors" if one["kind"].endswith("Monitor") else kubernetes, one["kind"]).validate(one)


@lru_cache
def validator(schema: str, kind: str) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator({**SCHEMAS[schema], "$ref": f"#/definitions/{kind}"})


def test_what_lies_here_was_made_of_the_chart_as_it_is() -> None:
    made_of = (DATA / "digest.txt").read_text().strip()
    assert made_of == render_chart.digest(), "make chart"
    assert {path.stem for path in (DATA / "rendered").iterdir()} == set(VALUES)


@EVERY_SET
def test_kubernetes_takes_it(name: str) -> None:
    for version in ["v1.29"] if name in render_chart.OLD_CLUSTERS else ["v1.33", "v1.37"]:
        check(rendered(name), version)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("spec", "template", "spec", "hostPid"), True), (("spec", "updateStrategy", "type"), 3), (("speck",), {})],
    ids=str,
)
def test_the_schemas_refuse_what_an_api_server_would(path: tuple[str, ...], value: object) -> None:
    [daemons] = [one for one in rendered("default") if one["kind"] == "DaemonSet"]
    within = daemons
    for part in path[:-1]:
        within = within[part]
    within[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check([daemons], "v1.37")


def test_a_schema_of_a_monitor_refuses_what_it_does_not_know() -> None:
    [monitor] = [one for one in rendered("service-monitor") if one["kind"] == "ServiceMonitor"]
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError):
        check([monitor], "v1.37")


def test_by_default_it_asks_for_five_capabilities_and_nothing_else() -> None:
    found = rendered("default")
    [pod] = pods(found)
    [container] = pod["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": DEFAULTS["capabilities"]}
    assert set(DEFAULTS["capabilities"]) == FIVE
    assert {name.removeprefix("CAP_") for name in rows_of() if name.startswith("CAP_")} == FIVE, "what check asks for"
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    assert context["readOnlyRootFilesystem"]
    assert pod["hostPID"]
    assert "hostNetwork" not in pod
    assert not pod["automountServiceAccountToken"]
    folders = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert folders == {"/var/lib/ingero", "/run/ingero", "/sys/fs/cgroup"}
    assert {one["kind"] for one in found} == {"DaemonSet", "ServiceAccount"}, "no roles: it asks no API server"


@EVERY_SET
def test_no_set_of_values_makes_a_privileged_container_of_itself(name: str) -> None:
    contexts = [container["securityContext"] for container in containers(rendered(name))]
    assert not any(context["privileged"] or context["allowPrivilegeEscalation"] for context in contexts)


@pytest.mark.parametrize("name", ["dashboard-token", "dashboard-mtls"])
def test_what_the_network_reaches_has_no_rights_and_sees_no_process_of_the_node(name: str) -> None:
    [pod] = [pod for pod in pods(rendered(name)) if pod["containers"][0]["name"] == "dashboard"]
    assert "hostPID" not in pod
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume] != ["/"]


def settings(container: Object) -> TraceSettings:
    """Of the agent, from the arguments and variables that Kubernetes would give it."""
    command = cli.get_command(None, "trace")  # type: ignore[arg-type]  # the context is not used
    assert command is not None
    context = command.make_context("trace", list(container["args"][1:]))
    given = {variable["name"]: variable.get("value", "a") for variable in container["env"]}
    return resolve(context.params, given, uid=0)


@EVERY_SET
def test_the_product_takes_the_arguments_and_values(name: str) -> None:
    values = yaml.safe_load(VALUES[name].read_text()) or {}
    for container in containers(rendered(name)):
        parse(container["args"])
        if container["name"] != "trace":
            continue
        got = settings(container)
        assert got.uid is None, "every user's processes"
        assert got.node == "a", "the node's name, by the downward API"
        assert got.record == values.get("trace", {}).get("record", True)
        assert (got.prometheus is not None) == values.get("prometheus", {}).get("enabled", False)
        assert (got.otlp is not None) == values.get("otlp", {}).get("enabled", False)


@EVERY_SET
def test_the_product_knows_the_variables(name: str) -> None:
    known = (ROOT / "docs/commands.md").read_text() + (ROOT / "docs/kubernetes.md").read_text()
    names = {variable["name"] for container in containers(rendered(name)) for variable in container["env"]}
    ours = {name for name in names if re.match("INGERO_|OTEL_|NODE_NAME", name)}
    assert ours
    assert [name for name in ours if f"`{name}`" not in known] == []


@EVERY_SET
def test_probes_ask_what_the_product_answers(name: str) -> None:
    for container in containers(rendered(name)):
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            command = container.get(kind, {}).get("exec", {}).get("command")
            if command:
                assert command[0] == "ingero"
                parse(command[1:])
                assert container["args"][1] in command, "the same database"


@EVERY_SET
def test_what_is_mounted_is_there(name: str) -> None:
    for pod in pods(rendered(name)):
        there = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == there


@EVERY_SET
def test_a_secret_stands_in_no_argument_and_only_root_reads_its_file(name: str) -> None:
    for pod in pods(rendered(name)):
        for volume in pod["volumes"]:
            if volume["name"] in ("token", "tls"):
                assert volume["secret"]["defaultMode"] == 0o400, "else the product refuses it"
    text = (DATA / "rendered" / f"{name}.yaml").read_text()
    assert "kind: Secret" not in text
    assert not re.search(r"--\w*token=", text)


def test_the_configuration_is_word_for_word(tmp_path: Path) -> None:
    wanted = yaml.safe_load(VALUES["dashboard-mtls"].read_text())["config"]
    [got] = [one["data"]["ingero.yaml"] for one in rendered("dashboard-mtls") if one["kind"] == "ConfigMap"]
    assert got == wanted
    (tmp_path / "ingero.yaml").write_text(got)
    assert {entry.option.name for entry in read_config(tmp_path / "ingero.yaml")} <= set(BY_NAME)


@EVERY_SET
def test_services_monitors_and_policies_find_their_pods(name: str) -> None:
    found = rendered(name)
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in found if one["kind"] == "DaemonSet"]
    for one in found:
        selector = {
            "Service": lambda spec: spec["selector"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "PodMonitor": lambda spec: spec["selector"]["matchLabels"],
        }.get(one["kind"])
        if selector:
            assert sum(selector(one["spec"]).items() <= of_pod.items() for of_pod in labels) == 1, one["kind"]
    services = [one["metadata"]["labels"] for one in found if one["kind"] == "Service"]
    for one in found:
        if one["kind"] == "ServiceMonitor":
            assert sum(one["spec"]["selector"]["matchLabels"].items() <= of.items() for of in services) == 1


def test_the_chart_has_the_version_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@EVERY_SET
def test_a_set_of_values_is_allowed(name: str) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(yaml.safe_load(VALUES[name].read_text()) or {})


def test_the_schema_knows_each_default_and_nothing_else() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(DEFAULTS)
    assert set(SCHEMA["properties"]) - {"global"} == set(DEFAULTS)
    for name, defaults in DEFAULTS.items():
        known = SCHEMA["properties"][name].get("properties")
        assert known is None or set(defaults) <= set(known) <= {*defaults, "localhostProfile"}, name


@pytest.mark.parametrize(
    "path",
    [("prometeus",), ("prometheus", "enable"), ("trace", "maxDB"), ("dashboard", "tokenSecret", "nam"), ("fleetPush",)],
    ids=".".join,
)
def test_an_unknown_key_is_refused(path: tuple[str, ...]) -> None:
    values = copy.deepcopy(DEFAULTS)
    within = values
    for part in path[:-1]:
        within = within[part]
    within[path[-1]] = True
    with pytest.raises(jsonschema.ValidationError, match=path[-1]):
        jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_the_manifests_without_helm_are_those_of_the_default_values() -> None:
    folder = ROOT / "deploy" / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization["resources"] == [render_chart.MANIFESTS.name]
    found = objects(render_chart.MANIFESTS.read_text())
    namespace = [one for one in found if one["kind"] == "Namespace"]
    assert [one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] for one in namespace] == ["privileged"]
    expected = rendered("default")
    for one in expected:
        del one["metadata"]["labels"]["helm.sh/chart"], one["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    key = str
    assert sorted((one for one in found if one not in namespace), key=key) == sorted(expected, key=key)
    check(found, "v1.37")


@needs_helm
def test_helm_finds_nothing_wrong_with_it() -> None:
    done = subprocess.run([HELM, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@needs_helm
def test_helm_makes_what_lies_here() -> None:
    assert [str(path) for path, text in render_chart.files(HELM).items() if path.read_text() != text] == []


@needs_helm
@EVERY_SET
@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_what_helm_makes_for_a_version_is_valid_in_it(name: str, version: str) -> None:
    check(objects(render_chart.render(HELM, VALUES[name], kubernetes=f"{version}.0")), f"v{version}")


@needs_helm
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("otlp.enabled=true", "otlp.enabled needs otlp.endpoint"),
        ("otlp.enabled=true,otlp.endpoint=c:1,otlp.insecure=true", "needs hostNetwork"),
        ("otlp.enabled=true,otlp.endpoint=http://c:1", "otlp/endpoint"),
        ("dashboard.enabled=true", "dashboard.tokenSecret.name"),
        ("dashboard.enabled=true,dashboard.tokenSecret.name=t,storage.hostPath=", "needs storage.hostPath"),
        ("prometheus.serviceMonitor.enabled=true", "prometheus.enabled: true"),
        ("trace.record=false", "trace for nobody"),
        ("capabilities={CAP_BPF}", "capabilities/0"),
        ("prometeus.enabled=true", "prometeus"),
    ],
)
def test_helm_refuses_what_cannot_be_meant_and_says_why(given: str, said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render_chart.render(HELM, None, "--set", given)
    assert said in refused.value.stderr


@needs_helm
def test_privileged_is_a_value_for_those_who_want_it() -> None:
    [container] = containers(objects(render_chart.render(HELM, None, "--set", "privileged=true")))
    context = container["securityContext"]
    assert (context["privileged"], context["allowPrivilegeEscalation"], "capabilities" in context) == (
        True,
        True,
        False,
    )
