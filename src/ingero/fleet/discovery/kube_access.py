"""Kubernetes cluster and credentials: from KUBECONFIG, the pod's service account, or ~/.kube/config."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from ingero.errors import IngeroError
from ingero.fleet.discovery.programs import output_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_BYTES = 1 << 20
_MAX_WORD_CHARACTERS = 4096
_PROGRAM_S = 30.0  # time limit of a credential program: it may ask an identity provider
_HINT = "kubectl uses the same file: `kubectl config view --minify` shows what it says"


class KubeAccessError(IngeroError):
    """The cluster or the credentials are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """An API server and the credentials for it. url: without a slash at its end. token: "" for none.

    server_name: the name its certificate is for; "": the host of the url. namespace: the default one.
    """

    url: str
    context: ssl.SSLContext
    server_name: str = ""
    token: str = field(default="", repr=False)
    namespace: str = "default"


_Word = Annotated[str, msgspec.Meta(max_length=_MAX_WORD_CHARACTERS)]
_Pem = Annotated[str, msgspec.Meta(max_length=_MAX_BYTES)]


class _Server(msgspec.Struct, frozen=True, rename="kebab"):
    server: _Word = ""
    certificate_authority: _Word = ""
    certificate_authority_data: _Pem = ""
    tls_server_name: _Word = ""
    insecure_skip_tls_verify: bool = False


class _Variable(msgspec.Struct, frozen=True):
    name: _Word
    value: _Word = ""


class _Program(msgspec.Struct, frozen=True, rename="camel"):
    command: _Word
    api_version: _Word = "client.authentication.k8s.io/v1"
    args: list[_Word] | None = None
    env: list[_Variable] | None = None


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: _Pem = ""
    token_file: _Word = msgspec.field(default="", name="tokenFile")
    client_certificate: _Word = ""
    client_certificate_data: _Pem = ""
    client_key: _Word = ""
    client_key_data: _Pem = ""
    exec: _Program | None = None


class _Place(msgspec.Struct, frozen=True):
    cluster: _Word = ""
    user: _Word = ""
    namespace: _Word = "default"


class _NamedServer(msgspec.Struct, frozen=True):
    name: _Word
    cluster: _Server


class _NamedUser(msgspec.Struct, frozen=True):
    name: _Word
    user: _User | None = None


class _NamedPlace(msgspec.Struct, frozen=True):
    name: _Word
    context: _Place


class _Config(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: _Word = ""
    clusters: list[_NamedServer] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedPlace] | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: _Pem = ""
    client_certificate_data: _Pem = ""
    client_key_data: _Pem = ""


class _Credential(msgspec.Struct, frozen=True):
    status: _Status


@dataclass(frozen=True, slots=True)
class _Found:
    """The merged configuration of several files, each part with the folder that its paths are relative to."""

    context: str
    servers: dict[str, tuple[_Server, Path]]
    users: dict[str, tuple[_User, Path]]
    places: dict[str, _Place]


def find_cluster(environ: Mapping[str, str], home: Path, *, account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Find the cluster as kubectl does. account: where a pod finds its service account.

    Raises:
        KubeAccessError: there is none, or what is said of it cannot be used.
        ProgramError: the program that knows who asks does not say it.
    """
    named = [Path(one) for one in environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    if not named and environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").is_file():
        return _own_cluster(environ, account)
    files = [path.absolute() for path in named or [home / ".kube" / "config"] if path.exists()]
    if not files:
        raise KubeAccessError(
            "no Kubernetes cluster is configured",
            hint="KUBECONFIG names the file that says it; in a pod, its service account does",
        )
    return _configured(_joined(files), environ)


def _own_cluster(environ: Mapping[str, str], account: Path) -> Cluster:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = account / "namespace"
    return Cluster(
        url=_checked_url(f"https://{f'[{host}]' if ':' in host else host}:{port}"),
        context=_context(_read(account / "ca.crt").decode("ascii", "replace")),
        token=_token(_read(account / "token").decode("ascii", "replace")),
        namespace=_read(namespace).decode("ascii", "replace").strip() if namespace.is_file() else "default",
    )


def _joined(files: Sequence[Path]) -> _Found:
    """Merge files: the first one that sets a value wins, as with kubectl."""
    found = _Found("", {}, {}, {})
    context = ""
    for path in files:
        config, folder = _parsed(path), path.parent
        context = context or config.current_context
        for server in config.clusters or ():
            found.servers.setdefault(server.name, (server.cluster, folder))
        for user in config.users or ():
            found.users.setdefault(user.name, (user.user or _User(), folder))
        for place in config.contexts or ():
            found.places.setdefault(place.name, place.context)
    return _Found(context, found.servers, found.users, found.places)


def _parsed(path: Path) -> _Config:
    import yaml  # noqa: PLC0415  # takes 30 ms

    raw = _read(path)
    if os.geteuid() == 0 and path.stat().st_uid != 0:
        raise KubeAccessError(
            f"{path} belongs to another user: root neither reads nor runs what it names", hint="without sudo"
        )
    try:
        return msgspec.convert(yaml.safe_load(raw), _Config)
    except (yaml.YAMLError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = str(error).splitlines()[0][:200]
        raise KubeAccessError(f"{path} is not a kubectl configuration: {why}", hint=_HINT) from error


def _configured(found: _Found, environ: Mapping[str, str]) -> Cluster:
    place = found.places.get(found.context)
    if place is None or place.cluster not in found.servers:
        raise KubeAccessError("no current context names a cluster", hint="kubectl config use-context NAME")
    server, folder = found.servers[place.cluster]
    if server.insecure_skip_tls_verify:
        raise KubeAccessError(
            f"cluster {place.cluster!r} cannot be verified (insecure-skip-tls-verify)",
            hint="name its authority: certificate-authority",
        )
    user, user_folder = found.users.get(place.user, (_User(), folder))
    shown = _of_program(user.exec, user_folder, environ) if user.exec else _Status()
    certificate = shown.client_certificate_data or _pem(
        user.client_certificate_data, user.client_certificate, user_folder
    )
    key = shown.client_key_data or _pem(user.client_key_data, user.client_key, user_folder)
    token = shown.token or user.token
    if not token and user.token_file:
        token = _read(user_folder / user.token_file).decode("ascii", "replace")
    return Cluster(
        url=_checked_url(server.server),
        context=_context(
            _pem(server.certificate_authority_data, server.certificate_authority, folder), certificate, key
        ),
        server_name=server.tls_server_name,
        token=_token(token),
        namespace=place.namespace,
    )


def _of_program(program: _Program, folder: Path, environ: Mapping[str, str]) -> _Status:
    """Credentials from a program, such as one of a cloud provider (client-go credential plugins)."""
    command = program.command
    if "/" in command:
        command = str(folder / command)
    about = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {one.name: one.value for one in program.env or ()}
    wanted = dict(environ) | variables | {"KUBERNETES_EXEC_INFO": msgspec.json.encode(about).decode()}
    printed = output_of([command, *(program.args or ())], wanted, hint=_HINT, timeout_s=_PROGRAM_S)
    try:
        return msgspec.json.decode(printed, type=_Credential).status
    except (msgspec.MsgspecError, RecursionError) as error:
        raise KubeAccessError(f"{command} prints no ExecCredential", hint=_HINT) from error


def _pem(data: str, name: str, folder: Path) -> str:
    """PEM data from the configuration itself, else from the file that it names."""
    if not data:
        return _read(folder / name).decode("ascii", "replace") if name else ""
    try:
        return base64.b64decode(data, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise KubeAccessError("a certificate or key is not base64-encoded PEM", hint=_HINT) from error


def _context(ca: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """A TLS context; 1.2 is allowed, because some clusters speak nothing newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca:
            context.load_verify_locations(cadata=ca)
        else:
            context.load_default_certs()
        if certificate:
            _load_pair(context, f"{certificate}\n{key}")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise KubeAccessError(f"a certificate or key of the cluster cannot be used: {why}", hint=_HINT) from error
    return context


def _load_pair(context: ssl.SSLContext, pem: str) -> None:
    """Load a certificate with its key through an unlinked file: the library only reads files."""
    number = os.memfd_create("pair", os.MFD_CLOEXEC)
    try:
        os.write(number, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{number}", password=lambda: "")
    finally:
        os.close(number)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme == "https" and bool(parts.hostname) and not parts.username and (parts.port or 443) > 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
        raise KubeAccessError(f"{url[:80]!r} is not a cluster address: it must use https", hint=_HINT)
    return url.rstrip("/")


def _token(text: str) -> str:
    token = text.strip()
    if not token.isascii() or not token.isprintable():
        raise KubeAccessError("the token for the cluster is not valid", hint=_HINT)
    return token


def _read(path: Path) -> bytes:
    """A small, plain file."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:  # noqa: PTH123  # opened so that no pipe holds it up
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise KubeAccessError(f"{path} is not a regular file", hint=_HINT)
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KubeAccessError(f"{path}: {error.strerror}", hint=_HINT) from error
    if len(raw) > _MAX_BYTES:
        raise KubeAccessError(f"{path} is larger than {_MAX_BYTES >> 20} MiB", hint=_HINT)
    return raw
