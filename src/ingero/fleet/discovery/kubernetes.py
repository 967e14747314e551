"""The nodes behind a selector in Kubernetes: `k8s:gpu/app=ingero`, of pods or of the endpoints of a service."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

import httpx2
import msgspec

from ingero import __version__
from ingero.errors import IngeroError
from ingero.fleet.discovery.kube_access import Cluster, find_cluster
from ingero.fleet.node_lists import DEFAULT_PORT, KUBERNETES, MAX_NODES, Node, NodeListError, is_host
from ingero.fleet.reasons import reason_of
from ingero.foreign_text import visible

_WHAT = re.compile(r"(?P<namespace>[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?/(?P<selector>.{1,4096})", re.DOTALL)
_TERM = re.compile(r"(?:[^,()]|\([^()]*\))+")  # commas in brackets are of a set
_OF_FIELDS = ("spec.", "status.", "metadata.")
_OF_SERVICE = "kubernetes.io/service-name"  # the label that slices of endpoints have, and nothing else
_PORT_NAME = "ingero"
_GONE = "status.phase!=Succeeded,status.phase!=Failed"  # evicted pods are kept; others took their places
_PAGE, _MAX_PAGE_BYTES, _TIMEOUT_S = 250, 32 << 20, 15.0  # a pod is 4 to 30 KB of JSON
_MAX_REASON_CHARACTERS = 300
_OK = 200
_HINT = "write it like k8s:gpu/app=ingero"

_Word = Annotated[str, msgspec.Meta(max_length=512)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class KubernetesError(IngeroError):
    """The cluster does not report the nodes."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    deletion_timestamp: str | None = None


class _ContainerPort(msgspec.Struct, frozen=True, rename="camel"):
    container_port: _Port
    name: _Word = ""


class _Container(msgspec.Struct, frozen=True):
    ports: list[_ContainerPort] = []


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: _Word = ""
    containers: list[_Container] = []


class _State(msgspec.Struct, frozen=True):
    pod_ip: _Word = msgspec.field(default="", name="podIP")


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _State = _State()


class _Conditions(msgspec.Struct, frozen=True):
    terminating: bool | None = None


class _Target(msgspec.Struct, frozen=True):
    uid: _Word = ""


class _Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: list[_Word] = []
    node_name: _Word | None = None
    target_ref: _Target | None = None
    conditions: _Conditions = _Conditions()


class _EndpointPort(msgspec.Struct, frozen=True):
    name: _Word | None = None
    port: _Port | None = None


class _Slice(msgspec.Struct, frozen=True):
    endpoints: list[_Endpoint] | None = None
    ports: list[_EndpointPort] | None = None


class _ListMeta(msgspec.Struct, frozen=True):
    next: str = msgspec.field(default="", name="continue")


class _Pods(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[_Pod] | None = None


class _Slices(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[_Slice] | None = None


class _Refusal(msgspec.Struct, frozen=True):
    message: str = ""


_List = TypeVar("_List", _Pods, _Slices)


def selected_nodes(what: str, environ: Mapping[str, str], home: Path) -> Iterator[Node]:
    """The nodes of [NAMESPACE]/SELECTOR: of pods with these labels and fields, or of a service's endpoints.

    A node is named like the Kubernetes node, which its certificate is for, and reached at the pod's address. A pod
    without an address yet is asked by name, and so is missing with a reason rather than silently.

    Raises:
        NodeListError: it is no selector, or selects nobody.
        IngeroError: the cluster is not known, or does not answer.
    """
    found = _WHAT.fullmatch(what)
    if found is None or not found["selector"].strip():
        raise NodeListError(f"{KUBERNETES + what[:80]!r} names no namespace and selector", hint=_HINT)
    labels, fields = _terms(found["selector"])
    cluster = find_cluster(environ, home)
    namespace = found["namespace"] or cluster.namespace
    nodes = list(_nodes(cluster, namespace, labels, fields))
    if not nodes:
        raise NodeListError(
            f"nothing in namespace {namespace} is selected by {found['selector']}",
            hint=f"kubectl get pods -n {namespace} --show-labels",
        )
    yield from nodes


def _terms(selector: str) -> tuple[list[str], list[str]]:
    """The terms of a selector: those on labels, and those on fields."""
    terms = [one.strip() for one in _TERM.findall(selector)]
    fields = [term for term in terms if term.startswith(_OF_FIELDS)]
    return [term for term in terms if term not in fields], fields


def _nodes(cluster: Cluster, namespace: str, labels: Sequence[str], fields: Sequence[str]) -> Iterator[Node]:
    of = quote(namespace, safe="")
    if any(one.startswith(_OF_SERVICE) for one in labels):
        path = f"/apis/discovery.k8s.io/v1/namespaces/{of}/endpointslices"
        pages = _all(cluster, path, {"labelSelector": labels, "fieldSelector": fields}, _Slices)
        yield from _of_slices(part for page in pages for part in page.items or ())
        return
    path = f"/api/v1/namespaces/{of}/pods"
    for page in _all(cluster, path, {"labelSelector": labels, "fieldSelector": [*fields, _GONE]}, _Pods):
        for pod in page.items or ():
            if pod.metadata.deletion_timestamp is None and (pod.status.pod_ip or pod.spec.node_name):
                ports = [one for container in pod.spec.containers for one in container.ports]
                port = next((one.container_port for one in ports if one.name == _PORT_NAME), DEFAULT_PORT)
                yield _node(pod.spec.node_name, pod.status.pod_ip, port)


def _of_slices(slices: Iterable[_Slice]) -> Iterator[Node]:
    """Endpoints that are not terminating; a pod with addresses of both families is in two slices."""
    seen = set()
    for part in slices:
        ports = [one for one in part.ports or () if one.port]
        named = [one for one in ports if one.name == _PORT_NAME] or ports
        if len(named) > 1:
            raise NodeListError("the service has several ports", hint=f"call the one of nodes {_PORT_NAME}")
        port = (named[0].port if named else None) or DEFAULT_PORT
        for each in part.endpoints or ():
            pod = each.target_ref.uid if each.target_ref else ""
            if each.conditions.terminating or not each.addresses or pod in seen:
                continue
            seen |= {pod} - {""}
            yield _node(each.node_name or "", each.addresses[0], port)


def _node(name: str, address: str, port: int) -> Node:
    host = name.lower() or address
    if not is_host(host) or not is_host(address or host):
        raise NodeListError(f"the cluster names {host[:80]!r} at {address[:80]!r}, which is not a node", hint=_HINT)
    return Node(host, port, address if address != host else "")


def _all(cluster: Cluster, path: str, selectors: Mapping[str, Sequence[str]], kind: type[_List]) -> list[_List]:
    return asyncio.run(_limited(cluster, path, selectors, kind))


async def _limited(
    cluster: Cluster, path: str, selectors: Mapping[str, Sequence[str]], kind: type[_List]
) -> list[_List]:
    try:
        return await asyncio.wait_for(_pages(cluster, path, selectors, kind), _TIMEOUT_S)
    except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
        raise KubernetesError(f"{cluster.url} did not answer within {_TIMEOUT_S:g} s", hint=_hint(path)) from None
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        raise KubernetesError(f"{cluster.url}: {reason_of(error)}", hint=_hint(path)) from error


async def _pages(cluster: Cluster, path: str, selectors: Mapping[str, Sequence[str]], kind: type[_List]) -> list[_List]:
    question = {name: ",".join(terms) for name, terms in selectors.items() if terms} | {"limit": str(_PAGE)}
    found: list[_List] = []
    async with httpx2.AsyncHTTPTransport(verify=cluster.context, trust_env=False) as transport:
        while len(found) * _PAGE <= MAX_NODES:
            page = await _page(transport, cluster, f"{path}?{urlencode(question)}", kind)
            found.append(page)
            if not page.metadata.next:
                return found
            question["continue"] = page.metadata.next
    raise NodeListError(f"more than {MAX_NODES:,} are selected", hint="select a part of them")


async def _page(transport: httpx2.AsyncHTTPTransport, cluster: Cluster, path: str, kind: type[_List]) -> _List:
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": f"ingero/{__version__}"}
    if cluster.token:
        headers["authorization"] = f"Bearer {cluster.token}"
    extensions = {"sni_hostname": cluster.server_name} if cluster.server_name else {}
    request = httpx2.Request("GET", cluster.url + path, headers=headers, extensions=extensions)
    response = await transport.handle_async_request(request)
    try:
        raw = bytearray()
        async for piece in response.aiter_raw():
            raw += piece
            if len(raw) > _MAX_PAGE_BYTES:
                raise KubernetesError(f"{cluster.url} answers with too much", hint=_hint(path))
    finally:
        await response.aclose()
    try:
        if response.status_code != _OK:
            reason = visible(msgspec.json.decode(bytes(raw), type=_Refusal).message)[:_MAX_REASON_CHARACTERS]
            raise KubernetesError(f"{cluster.url} refuses: {reason or response.status_code}", hint=_hint(path))
        return msgspec.json.decode(bytes(raw), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if response.status_code != _OK:
            raise KubernetesError(
                f"{cluster.url} answers with status {response.status_code}", hint=_hint(path)
            ) from None
        raise KubernetesError(f"{cluster.url} answers something else than the API", hint=_hint(path)) from error


def _hint(path: str) -> str:
    """A command that shows whether the fault is ingero's or a missing permission."""
    namespace, _, kind = path.partition("?")[0].rpartition("/namespaces/")[2].partition("/")
    return f"kubectl auth can-i list {kind} -n {namespace}"
