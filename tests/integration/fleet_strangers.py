"""Clients that a node must not believe, each asking it as `Host: localhost`; prints what each got, as JSON.

`python -m tests.integration.fleet_strangers ADDRESS OWN OTHER`: folders of the node's authority and of another one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ingero.fleet.access import client_context
from ingero.fleet.node_lists import Node
from tests.unit.fleet.test_server import STRANGERS, application_bytes
from tests.unit.fleet_nodes import Certificates


def main(address: str, own_folder: str, other_folder: str) -> None:
    """Asks as each of them, and once as one who is believed but means another node."""
    own, other, node = Certificates(Path(own_folder)), Certificates(Path(other_folder)), Node(address)
    found = {make.__name__: len(application_bytes(node, make(own, other))) for make in STRANGERS}
    context = client_context(own.client("believed"))
    assert context is not None
    elsewhere = b"GET /api/v1/chains HTTP/1.1\r\nHost: gpu-77.example\r\nConnection: close\r\n\r\n"
    answer = application_bytes(node, context, elsewhere)
    print(json.dumps({"bytes": found, "elsewhere": answer.split(b" ", 2)[1].decode()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
