"""The nodes that Slurm has given to a job: `slurm:1234`, `slurm:1234_7` of an array, with `:PORT` behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ingero.fleet.discovery.programs import output_of
from ingero.fleet.node_lists import DEFAULT_PORT, SLURM, Node, NodeListError, expand, is_host

_JOB = re.compile(r"(?P<job>[0-9]{1,10}([_+][0-9]{1,10})?)(:(?P<port>[0-9]{1,5}))?")
_HINT = "write it like slurm:1234 where squeue knows the job, or name the nodes"


def job_nodes(what: str, environ: Mapping[str, str]) -> Iterator[Node]:
    """The nodes of a job, of all tasks of an array where none is named, in squeue's order. what: JOB[:PORT].

    Raises:
        NodeListError: it is no job, has no nodes, or squeue names something else.
        ProgramError: squeue does not answer.
    """
    found = _JOB.fullmatch(what)
    if found is None:
        raise NodeListError(f"{SLURM + what!r} is not a job", hint=_HINT)
    # a recording outlives its job, and so does the job in Slurm for some minutes (MinJobAge)
    argv = ("squeue", "--noheader", "--states=all", "--format=%N", f"--jobs={found['job']}")
    printed = output_of(argv, environ, hint=_HINT)
    names = dict.fromkeys(name for line in printed.splitlines() for name in expand(line.strip()))
    if not names:
        raise NodeListError(f"job {found['job']} has no nodes", hint="squeue shows whether it is waiting for some")
    for name in names:
        if not is_host(name) or ":" in name:
            raise NodeListError(f"squeue names {name[:80]!r}, which is not a node", hint=_HINT)
        yield Node(name.lower(), int(found["port"] or DEFAULT_PORT))
