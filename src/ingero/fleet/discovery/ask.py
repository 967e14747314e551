"""Chooses the service that knows the nodes a word of a list stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ingero.fleet.node_lists import KUBERNETES, SLURM, Node


def discovery(environ: Mapping[str, str], home: Path) -> Callable[[str], Iterable[Node]]:
    """The discovery function for `parse_nodes`. environ: PATH, KUBECONFIG, the cluster's variables. home: of ~/.kube.

    The current folder is not searched.
    """

    def nodes(word: str) -> Iterable[Node]:
        kind, _, what = word.partition(":")
        if f"{kind}:" == SLURM:
            from ingero.fleet.discovery.slurm import job_nodes  # noqa: PLC0415  # most lists need none of these

            return job_nodes(what, environ)
        if f"{kind}:" == KUBERNETES:
            from ingero.fleet.discovery.kubernetes import selected_nodes  # noqa: PLC0415  # as above

            return selected_nodes(what, environ, home)
        from ingero.fleet.discovery.dns_services import service_nodes  # noqa: PLC0415  # as above

        return service_nodes(what)

    return nodes
