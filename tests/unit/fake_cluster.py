"""Simulated sources of node lists: a Kubernetes API server over HTTPS, squeue, and a DNS server."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.unit.fleet_nodes import Certificates

Object = dict[str, Any]


def pod(node: str, address: str, port: int = 0, *, phase: str = "Running", **labels: str) -> Object:
    """A pod as the API describes it. port: of the container, called ingero; 0: none."""
    ports = [{"name": "metrics", "containerPort": 9464}]
    ports += [{"name": "ingero", "containerPort": port}] if port else []
    return {
        "metadata": {"name": f"ingero-{node}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "trace"}, {"name": "serve", "ports": ports}]},
        "status": {"phase": phase, "podIP": address} if address else {"phase": phase},
    }


def slice_of(*endpoints: Object, ports: tuple[Object, ...], service: str = "ingero") -> Object:
    """A slice of the endpoints of a service."""
    return {
        "metadata": {"labels": {"kubernetes.io/service-name": service}},
        "endpoints": list(endpoints),
        "ports": list(ports),
    }


@dataclass
class Api:
    """The state of the API server. asked: each requested path with its query. answer: replaces its own answers."""

    pods: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    token: str = "token-of-the-breakdown"
    asked: list[tuple[str, Object]] = field(default_factory=list)
    answer: Callable[[BaseHTTPRequestHandler], None] | None = None
    url: str = ""
    page: int = 2


@contextmanager
def serving_api(certificates: Certificates, *, wants_certificate: bool = False) -> Iterator[Api]:
    """An API server at 127.0.0.1."""
    api = Api()
    made = certificates.make("kubernetes")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    if wants_certificate:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            question = {name: values[0] for name, values in parse_qs(parts.query).items()}
            api.asked.append((parts.path, question))
            if api.answer:
                api.answer(self)
            elif not wants_certificate and self.headers.get("authorization") != f"Bearer {api.token}":
                self.say(401, {"kind": "Status", "message": "Unauthorized"})
            else:
                self.say(200, _listed(api, parts.path, question))

        def say(self, status: int, body: Object) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignores clients that disconnect."""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        api.url = f"https://127.0.0.1:{server.server_address[1]}"
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()


def _listed(api: Api, path: str, question: Object) -> Object:
    """A page of what is selected: equality of labels and of the two fields that tests ask for."""
    items = api.slices if path.endswith("/endpointslices") else api.pods
    for term in question.get("labelSelector", "").split(",") if "(" not in question.get("labelSelector", "") else ():
        name, _, value = term.partition("=")
        items = [one for one in items if not term or one["metadata"]["labels"].get(name) == value]
    for term in question.get("fieldSelector", "").split(","):
        if term.startswith("status.phase!="):
            items = [one for one in items if one["status"]["phase"] != term.partition("!=")[2]]
        elif term.startswith("spec.nodeName="):
            items = [one for one in items if one["spec"]["nodeName"] == term.partition("=")[2]]
    begin = int(question.get("continue", 0))
    more = {"continue": str(begin + api.page)} if begin + api.page < len(items) else {}
    return {"kind": "List", "metadata": more, "items": items[begin : begin + api.page]}


def kubeconfig(path: Path, api: Api, certificates: Certificates, user: Object, **server: object) -> Path:
    """Writes a kubeconfig file."""
    about = {"server": api.url, "certificate-authority": str(certificates.ca)} | server
    path.write_text(
        yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "c", "cluster": about}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "gpu"}}],
        })
    )  # fmt: skip
    return path


def program(folder: Path, name: str, script: str) -> Path:
    """A program of that name, alone in PATH with what a shell needs; the folder to put before PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return folder


@contextmanager
def serving_names(answer: Callable[[bytes, bool], bytes]) -> Iterator[tuple[str, int]]:
    """A DNS server at 127.0.0.1. answer: makes the answer to a question, over TCP or not; empty for none."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(tcp.getsockname())
        is_ending = threading.Event()

        def datagrams() -> None:
            while not is_ending.is_set():
                question, who = udp.recvfrom(4096)
                if question and (said := answer(question, False)):
                    udp.sendto(said, who)

        def connections() -> None:
            while not is_ending.is_set():
                connection, _ = tcp.accept()
                with connection:
                    raw = connection.recv(4096)
                    if len(raw) > 2:
                        said = answer(raw[2:], True)
                        connection.sendall(struct.pack("!H", len(said)) + said)

        threads = [threading.Thread(target=one) for one in (datagrams, connections)]
        for thread in threads:
            thread.start()
        try:
            yield tcp.getsockname()
        finally:
            is_ending.set()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wake:
                wake.sendto(b"", udp.getsockname())
            socket.create_connection(tcp.getsockname()).close()
            for thread in threads:
                thread.join()


def dns_name(text: str) -> bytes:
    """A name in the encoding of DNS messages."""
    return b"".join(bytes([len(one)]) + one.encode() for one in text.split(".") if one) + b"\0"


def dns_answer(question: bytes, services: list[tuple[int, str, int]], *, flags: int = 0x8180) -> bytes:
    """SRV records (priority, target, port), each with the name of the question by a pointer to it."""
    end = question.index(b"\0", 12) + 5
    found = question[:2] + struct.pack("!5H", flags, 1, len(services), 0, 0) + question[12:end]
    for priority, target, port in services:
        data = struct.pack("!3H", priority, 0, port) + dns_name(target)
        found += b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, 60, len(data)) + data
    return found
