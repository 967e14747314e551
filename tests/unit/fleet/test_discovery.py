"""Lists of nodes that others know: a Slurm job, a selector in Kubernetes, a service in the DNS."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ingero.cli.fleet.options import FleetFlags, configured_fleet
from ingero.cli.main import cli
from ingero.errors import IngeroError
from ingero.fleet.discovery import kube_access, kubernetes, programs
from ingero.fleet.discovery.ask import discovery
from ingero.fleet.discovery.dns_services import NameServiceError, service_nodes
from ingero.fleet.discovery.kube_access import KubeAccessError, find_cluster
from ingero.fleet.discovery.kubernetes import KubernetesError
from ingero.fleet.discovery.programs import ProgramError
from ingero.fleet.node_lists import Node, NodeListError, parse_nodes
from tests.unit.fake_cluster import (
    Api,
    dns_answer,
    dns_name,
    kubeconfig,
    pod,
    program,
    serving_api,
    serving_names,
    slice_of,
)
from tests.unit.fleet_nodes import Certificates, make_certificates, record_node, serving_node

SERVICE = "_ingero._tcp.gpu.example"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture
def api(certificates: Certificates) -> Iterator[Api]:
    with serving_api(certificates) as found:
        yield found


@pytest.fixture
def environ(tmp_path: Path, api: Api, certificates: Certificates) -> dict[str, str]:
    """Of who has a kubectl that works."""
    path = kubeconfig(tmp_path / "kubeconfig", api, certificates, {"token": api.token})
    return {"KUBECONFIG": str(path), "PATH": os.environ["PATH"]}


def found(texts: list[str], environ: dict[str, str], home: Path = Path("/nowhere")) -> tuple[Node, ...]:
    return parse_nodes(texts, discovery(environ, home))


def squeue(tmp_path: Path, script: str) -> dict[str, str]:
    return {"PATH": f"{program(tmp_path / 'bin', 'squeue', script)}:/usr/bin:/bin"}


def test_a_job_stands_for_its_nodes(tmp_path: Path) -> None:
    said = tmp_path / "said"
    environ = squeue(tmp_path, f'printf "%s\\n" "$@" >{said}; echo "gpu[001-004,007],login1"; echo "gpu[003-005]"')
    names = ["gpu001", "gpu002", "gpu003", "gpu004", "gpu007", "login1", "gpu005"]
    assert found(["slurm:1234"], environ) == tuple(Node(name) for name in names)
    assert said.read_text().split() == ["--noheader", "--states=all", "--format=%N", "--jobs=1234"]
    assert found(["head,slurm:1234_7:9443"], environ)[:2] == (Node("head"), Node("gpu001", 9443))
    assert "--jobs=1234_7" in said.read_text()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Invalid job id specified"),
        ("exit 3", "it ended with 3"),
        ("true", "job 7 has no nodes"),
        ("echo '$(touch x)'", r"squeue names '\$\(touch'"),
        ("echo '@/etc/passwd'", "which is not a node"),
        ("echo 'gpu1:22'", "which is not a node"),
        ("echo '::1'", "which is not a node"),
        ("echo 'gpu[1-99999999]'", "more than 10,000 nodes"),
        ("printf 'a\\033[2Jb'", "which is not a node"),
        ("printf '\\033[2J' >&2; exit 1", r"\\x1b\[2J"),
        ("head -c 3000000 /dev/zero", "prints more than 1024 KiB"),
    ],
)
def test_what_squeue_prints_is_not_trusted(tmp_path: Path, script: str, reason: str) -> None:
    with pytest.raises((NodeListError, ProgramError), match=reason) as raised:
        found(["slurm:7"], squeue(tmp_path, script))
    assert raised.value.hint
    assert str(raised.value).isprintable()
    assert not (tmp_path / "x").exists()


def test_a_program_that_hangs_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "TIMEOUT_S", 0.3)
    child = tmp_path / "child"
    environ = squeue(tmp_path, f"sleep 60 & echo $! >{child}; wait")
    with pytest.raises(ProgramError, match=r"did not answer within 0\.3 s"):
        programs.output_of(["squeue"], environ, hint="x", timeout_s=0.3)
    pid = int(child.read_text())
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until


def test_programs_are_not_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "squeue", "echo evil")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramError, match="no program squeue"):
        found(["slurm:1"], {"PATH": f".::{tmp_path.name}:/nowhere"})


@pytest.mark.parametrize(
    "text", ["slurm:", "slurm:x", "slurm:1;2", "slurm:1,", "slurm:--help", "srv:", "k8s:", "srv:x"]
)
def test_words_that_name_nothing_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(NodeListError) as raised:
        found([text if text != "slurm:1," else "slurm:1/2"], squeue(tmp_path, "echo a"))
    assert raised.value.hint


def test_pods_are_called_by_their_node_and_reached_at_their_address(api: Api, environ: dict[str, str]) -> None:
    api.pods += [pod(f"gpu-{n}", f"10.0.0.{n}", 9000 + n, app="ingero", tier="a") for n in range(1, 6)]
    api.pods += [
        pod("other", "10.0.0.9", app="web"),
        pod("gpu-6", "10.0.0.6", app="ingero", phase="Failed"),
        pod("gpu-7", "", app="ingero", phase="Pending"),
        pod("gpu-8", "fd00::8", app="ingero"),
        pod("gpu-9", "10.0.0.10", app="ingero")
        | {"metadata": {"deletionTimestamp": "now", "labels": {"app": "ingero"}}},
    ]
    nodes = found(["k8s:gpu/app=ingero"], environ)
    assert nodes == (
        *(Node(f"gpu-{n}", 9000 + n, f"10.0.0.{n}") for n in range(1, 6)),
        Node("gpu-7"),  # it is asked and missing, not left out in silence
        Node("gpu-8", 8080, "fd00::8"),
    )
    assert [str(one) for one in nodes][-2:] == ["gpu-7", "gpu-8"]
    assert nodes[-1].reached_at == "[fd00::8]:8080"
    assert {path for path, _ in api.asked} == {"/api/v1/namespaces/gpu/pods"}
    assert len(api.asked) == 4  # pages
    api.asked.clear()
    assert found(["k8s:/app=ingero,tier=a, spec.nodeName=gpu-2"], environ) == (Node("gpu-2", 9002, "10.0.0.2"),)
    assert api.asked[0][1]["labelSelector"] == "app=ingero,tier=a"
    assert api.asked[0][1]["fieldSelector"].startswith("spec.nodeName=gpu-2,status.phase!=Succeeded")
    found(["k8s:gpu/app in (ingero, web),!old", "more"], environ)
    assert api.asked[1][1]["labelSelector"] == "app in (ingero, web),!old"


def test_endpoints_of_a_service(api: Api, environ: dict[str, str]) -> None:
    def endpoint(node: str, address: str, **more: Any) -> dict[str, Any]:
        return {"addresses": [address], "nodeName": node, "targetRef": {"uid": f"uid-of-{node}"}} | more

    ports = ({"name": "metrics", "port": 9464}, {"name": "ingero", "port": 8443})
    ending = endpoint("gpu-3", "10.0.0.3", conditions={"terminating": True})
    not_ready = endpoint("gpu-2", "10.0.0.2", conditions={"ready": False})
    api.slices += [
        slice_of(endpoint("gpu-1", "10.0.0.1"), not_ready, ending, ports=ports),
        slice_of(endpoint("gpu-1", "fd00::1"), ports=ports),  # the other family of the same pod
        slice_of({"addresses": ["10.0.0.4"]}, ports=({"name": "", "port": 8081},)),
        slice_of(endpoint("else", "10.0.0.5"), ports=ports, service="web"),
    ]
    assert found(["k8s:gpu/kubernetes.io/service-name=ingero"], environ) == (
        Node("gpu-1", 8443, "10.0.0.1"),
        Node("gpu-2", 8443, "10.0.0.2"),
        Node("10.0.0.4", 8081),
    )
    assert api.asked[0][0] == "/apis/discovery.k8s.io/v1/namespaces/gpu/endpointslices"
    api.slices[:] = [slice_of(ports=({"name": "a", "port": 1}, {"name": "b", "port": 2}))]
    with pytest.raises(NodeListError, match="several ports"):
        found(["k8s:gpu/kubernetes.io/service-name=ingero"], environ)


def test_nodes_of_a_selector_answer_by_the_certificate_of_their_node(
    api: Api, environ: dict[str, str], certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is what Kubernetes says, the certificate is what the node has."""
    monkeypatch.setenv("KUBECONFIG", environ["KUBECONFIG"])
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    (tmp_path / "ingero.yaml").write_text("")
    client = certificates.client()
    made = {name: certificates.make(name, name) for name in ("gpu-01", "gpu-02")}
    shown = ["--ca-cert", str(client.ca_cert), "--client-cert", str(client.client_cert), "--client-key",
             str(client.client_key)]  # fmt: skip
    one, two = (record_node(tmp_path / f"{name}.db", name) for name in made)
    with (
        serving_node(one, made=made["gpu-01"], client_ca=certificates.ca) as first,
        serving_node(two, made=made["gpu-02"], client_ca=certificates.ca) as second,
    ):
        api.pods += [pod("gpu-01", "127.0.0.1", first.port, app="x"), pod("gpu-02", "127.0.0.1", second.port, app="x")]
        api.pods += [pod("gpu-03", "127.0.0.1", second.port, app="x")]  # who has another node's certificate is not it
        done = CliRunner().invoke(
            cli, ["query", "--nodes", "k8s:gpu/app=x", *shown, "--json", "SELECT node FROM sessions"]
        )
    answer = json.loads(done.stdout)
    assert [row["node"] for row in answer["rows"]] == ["gpu-01", "gpu-02"]
    assert [one["node"] for one in answer["missing"]] == [f"gpu-03:{second.port}"]
    assert "certificate is not trusted" in answer["missing"][0]["reason"]
    assert done.exit_code == 3


def test_a_pod_asks_with_its_own_account(api: Api, certificates: Certificates, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(f"{api.token}\n")
    (account / "namespace").write_text("gpu")
    (account / "ca.crt").write_bytes(certificates.ca.read_bytes())
    port = api.url.rpartition(":")[2]
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    cluster = find_cluster(environ, tmp_path, account=account)
    assert (cluster.url, cluster.token, cluster.namespace) == (api.url, api.token, "gpu")
    assert api.token not in repr(cluster)
    (account / "token").unlink()
    with pytest.raises(KubeAccessError, match="no Kubernetes cluster is configured"):
        find_cluster(environ, tmp_path, account=account)


def test_a_certificate_or_a_program_says_who_asks(certificates: Certificates, tmp_path: Path) -> None:
    made = certificates.make("alice", "alice", is_server=False)
    pair = {"clientCertificateData": made.certificate.read_text(), "clientKeyData": made.key.read_text()}
    printed = tmp_path / "credential.json"
    printed.write_text(json.dumps({"kind": "ExecCredential", "status": pair}))
    program(tmp_path, "login", f'[ "$1$WHO" = oneme ] && cat {printed}')
    login = {"command": "./login", "args": ["one"], "env": [{"name": "WHO", "value": "me"}]}
    with serving_api(certificates, wants_certificate=True) as api:
        api.pods += [pod("gpu-1", "10.0.0.1", app="x")]
        home = tmp_path / "home"
        (home / ".kube").mkdir(parents=True)
        users = ({"client-certificate": str(made.certificate), "client-key": str(made.key)}, {"exec": login})
        for user in users:
            path = kubeconfig(tmp_path / "config", api, certificates, user)
            asked = found(["k8s:gpu/app=x"], {"KUBECONFIG": f"{tmp_path}/none:{path}", "PATH": os.environ["PATH"]})
            assert asked == (Node("gpu-1", 8080, "10.0.0.1"),)
        (home / ".kube" / "config").write_bytes(kubeconfig(tmp_path / "c", api, certificates, users[0]).read_bytes())
        assert found(["k8s:gpu/app=x"], {}, home) == (Node("gpu-1", 8080, "10.0.0.1"),)
        path = kubeconfig(tmp_path / "config", api, certificates, {})
        with pytest.raises(
            KubernetesError, match=r"client's certificate|closed the connection|connection reset|cannot be reached"
        ):
            found(["k8s:gpu/app=x"], {"KUBECONFIG": str(path)})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("", "not a kubectl configuration"),
        ("a: [", "not a kubectl configuration"),
        ("current-context: x", "no current context"),
        ("clusters: 5", "not a kubectl configuration"),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, config: str, reason: str) -> None:
    path = tmp_path / "config"
    path.write_text(config)
    with pytest.raises(KubeAccessError, match=reason) as raised:
        find_cluster({"KUBECONFIG": str(path)}, tmp_path)
    assert raised.value.hint


def test_a_cluster_that_cannot_be_told_from_others_is_not_asked(
    api: Api, certificates: Certificates, tmp_path: Path
) -> None:
    for change, reason in (
        ({"insecure-skip-tls-verify": True}, "cannot be verified"),
        ({"server": "http://127.0.0.1:1"}, "it must use https"),
        ({"server": "https://a@b"}, "it must use https"),
        ({"certificate-authority-data": "####"}, "not base64-encoded PEM"),
        ({"certificate-authority": "/nowhere"}, "No such file"),
    ):
        path = kubeconfig(tmp_path / "config", api, certificates, {"token": "t"}, **change)
        with pytest.raises(KubeAccessError, match=reason):
            find_cluster({"KUBECONFIG": str(path)}, tmp_path)
    other = make_certificates(tmp_path / "other")
    path = kubeconfig(tmp_path / "config", api, other, {"token": api.token})
    with pytest.raises(KubernetesError, match="no trusted authority signed it"):
        found(["k8s:gpu/a=b"], {"KUBECONFIG": str(path)})
    assert not api.asked


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have somebody else's file")
def test_root_does_not_run_what_somebody_elses_file_names(api: Api, certificates: Certificates, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", api, certificates, {"exec": {"command": "touch", "args": [f"{tmp_path}/x"]}})
    os.chown(path, 1000, 1000)
    with pytest.raises(KubeAccessError, match="belongs to another user"):
        find_cluster({"KUBECONFIG": str(path), "PATH": os.environ["PATH"]}, tmp_path)
    assert not (tmp_path / "x").exists()


def test_what_the_cluster_answers_is_not_trusted(
    api: Api, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "_TIMEOUT_S", 1.0)
    monkeypatch.setattr(kubernetes, "_MAX_PAGE_BYTES", 1 << 20)

    def says(status: int, raw: bytes, **headers: str) -> Any:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in ({"content-length": str(len(raw))} | headers).items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(raw)

        return answer

    def drips(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(60):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    forbidden = {"kind": "Status", "message": "pods is forbidden: \x1b[2J User cannot list"}
    evil = [{"spec": {"nodeName": "a b"}, "status": {"podIP": "10.0.0.1"}}]
    for answer, reason in (
        (says(403, json.dumps(forbidden).encode()), r"refuses: pods is forbidden: \\x1b\[2J User"),
        (says(500, b"<html>"), "answers with status 500"),
        (says(302, b"", location="https://evil.example/"), "answers with status 302"),
        (says(200, b"[" * 100_000), "something else than the API"),
        (says(200, b'{"items": 5}'), "something else than the API"),
        (says(200, b" " * (2 << 20)), "too much"),
        (says(200, json.dumps({"items": evil}).encode()), "names 'a b' at '10.0.0.1', which is not a node"),
        (says(200, b'{"items": []}'), "nothing in namespace gpu is selected by a=b"),
        (drips, "did not answer within 1 s"),
    ):
        api.answer = answer
        with pytest.raises(IngeroError, match=reason) as raised:
            found(["k8s:gpu/a=b"], environ)
        assert raised.value.hint
        assert str(raised.value).isprintable()


def test_a_selector_has_a_list_of_its_own(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(NodeListError, match="cannot be part of a list"):
        found(["a,k8s:gpu/app=x"], environ)
    (tmp_path / "nodes").write_text("a\nslurm:7\n")
    with pytest.raises(NodeListError, match="cannot be used in a file"):
        found([f"@{tmp_path}/nodes"], environ)
    with pytest.raises(NodeListError, match="is not a node"):
        parse_nodes(["slurm:7"])


def test_a_service_stands_for_its_targets() -> None:
    records = [(20, "b.gpu.example", 8080), (10, "c.GPU.example", 9443), (10, "a.gpu.example", 8080)]
    with serving_names(lambda question, _: dns_answer(question, records)) as server:
        nodes = list(service_nodes(SERVICE, [server]))
        assert list(service_nodes(f"{SERVICE.upper()}.", [server])) == nodes
    assert nodes == [Node("a.gpu.example"), Node("c.gpu.example", 9443), Node("b.gpu.example")]


def test_an_answer_that_is_too_long_comes_over_tcp() -> None:
    many = [(0, f"node-{number:04}.gpu.example", 8080) for number in range(1000)]

    def answer(question: bytes, is_tcp: bool) -> bytes:
        return dns_answer(question, many if is_tcp else [], flags=0x8180 if is_tcp else 0x8380)

    with serving_names(answer) as server:
        assert len(list(service_nodes(SERVICE, [server]))) == 1000


def test_the_next_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero.fleet.discovery.dns_services._WAIT_S", 0.2)
    good = [(0, "a.gpu.example", 8080)]
    with (
        serving_names(lambda *_: b"") as silent,
        serving_names(lambda question, _: dns_answer(question, [], flags=0x8182)) as failing,
        serving_names(lambda question, _: dns_answer(question, good)) as server,
    ):
        assert list(service_nodes(SERVICE, [silent, failing, server])) == [Node("a.gpu.example")]
        with pytest.raises(NameServiceError, match=r"did not answer in time|timed out|answers with error 2"):
            list(service_nodes(SERVICE, [silent, failing]))


def test_what_the_dns_answers_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero.fleet.discovery.dns_services._WAIT_S", 0.1)

    def target(name: str, port: int = 8080) -> Any:
        return lambda question, _: dns_answer(question, [(0, name, port)])

    def cut(size: int) -> Any:
        return lambda question, _: dns_answer(question, [(0, "a.gpu.example", 8080)])[:-size]

    def circle(question: bytes, _: bool) -> bytes:
        found = bytearray(dns_answer(question, [(0, "a.gpu.example", 8080)]))
        at = len(question[: question.index(b"\0", 12) + 5])
        found[at : at + 2] = struct_pointer(at)
        return bytes(found)

    def struct_pointer(at: int) -> bytes:
        return bytes([0xC0 | at >> 8, at & 0xFF])

    for answer, reason in (
        (target("evil.example"), "not a node below gpu.example"),
        (target("evilgpu.example"), "not a node below gpu.example"),
        (target("gpu.example.evil"), "not a node below gpu.example"),
        (target("a\x1b[2J.gpu.example"), "not a node below gpu.example"),
        (target("a.gpu.example", 0), "not a node below gpu.example"),
        (target("."), "knows no service"),
        (lambda question, _: dns_answer(question, [], flags=0x8183), "knows no service"),
        (lambda question, _: dns_answer(question, []), "knows no service"),
        (cut(3), "does not say where"),
        (circle, "does not say where"),
        (lambda question, _: b"\0\0" + dns_answer(question, [])[2:], "does not say where"),
        (lambda question, _: dns_answer(question[:12] + dns_name("_x._tcp.y") + question[-15:], []), "does not say"),
        (lambda *_: os.urandom(400), "does not say where"),
    ):
        with serving_names(answer) as server, pytest.raises(IngeroError, match=reason) as raised:
            list(service_nodes(SERVICE, [server]))
        assert raised.value.hint
        assert str(raised.value).isprintable()


def test_the_servers_are_those_of_the_system(tmp_path: Path) -> None:
    from ingero.fleet.discovery.dns_services import _system_servers  # noqa: PLC0415  # asked of no real server here

    conf = tmp_path / "resolv.conf"
    conf.write_text(
        "# x\nnameserver 10.0.0.1\nsearch a.b\nnameserver fd00::1\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n"
    )
    assert _system_servers(conf) == [("10.0.0.1", 53), ("fd00::1", 53), ("10.0.0.3", 53)]
    assert _system_servers(tmp_path / "none") == [("127.0.0.1", 53)]


def test_the_account_of_a_pod_is_where_kubernetes_puts_it() -> None:
    assert str(kube_access.SERVICE_ACCOUNT) == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_configured_jobs_are_asked_for_unless_a_recording_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that names a recording does not even run what knows the nodes."""
    ran = tmp_path / "ran"
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'bin', 'squeue', f'touch {ran}; echo localhost')}:/usr/bin:/bin")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)
    run, sql = CliRunner().invoke, "SELECT node FROM sessions"
    with serving_node(record_node(tmp_path / "a.db", "gpu-01"), has_tls=False) as node:
        (tmp_path / "ingero.yaml").write_text(f"fleet:\n  nodes:\n  - slurm:7:{node.port}\n")
        other = record_node(tmp_path / "b.db", "gpu-02")
        assert run(cli, ["query", "--csv", "--db", str(other), sql]).stdout == "node\ngpu-02\n"
        assert not ran.exists()
        named = run(cli, ["query", "--csv", "--no-tls", "--nodes", node.authority, sql])
        assert (named.stdout, ran.exists()) == ("node\ngpu-01\n", False)
        assert run(cli, ["query", "--csv", "--no-tls", sql]).stdout == "node\ngpu-01\n"
        assert ran.exists()


def test_items_of_the_configured_list_are_lists_of_their_own(api: Api, environ: dict[str, str], tmp_path: Path) -> None:
    """A selector has commas, and ends where its item does."""
    api.pods += [pod("gpu-1", "10.0.0.1", app="ingero", tier="a"), pod("gpu-2", "10.0.0.2", app="ingero", tier="b")]
    (tmp_path / "ingero.yaml").write_text("fleet:\n  nodes:\n  - k8s:gpu/app=ingero,tier=a\n  - head,other:81\n")
    asked = configured_fleet(
        FleetFlags(), environ=environ | {"INGERO_CONFIG": str(tmp_path / "ingero.yaml")}, uid=os.getuid()
    )
    assert asked is not None
    assert asked.nodes == (Node("gpu-1", 8080, "10.0.0.1"), Node("head"), Node("other", 81))
