"""Raises the agent's limit of open files; refuses a hard limit too low to trace anything."""

from __future__ import annotations

import resource

from ingero.errors import IngeroError
from ingero.foreign_text import shell_word
from ingero.program import command

# 348 are open with two libraries (programs, maps, links of each group of calls, libbpf's own, the database, files that
# are unwound through); each further library takes some, and two for each call where there are only perf-event probes.
MIN_DESCRIPTORS = 512


class TooFewDescriptorsError(IngeroError):
    """The hard limit of open files is too low."""

    def __init__(self, hard: int) -> None:
        again = command("trace")
        super().__init__(
            f"this process may have at most {hard} open files; tracing needs {MIN_DESCRIPTORS}",
            hint=f"sudo sh -c {shell_word(f'ulimit -n 4096; {again}')} (a unit: LimitNOFILE=4096, docker: --ulimit "
            "nofile=4096)",
        )


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns it.

    Raises:
        TooFewDescriptorsError: that is not enough.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < MIN_DESCRIPTORS:
        raise TooFewDescriptorsError(hard)
    return hard
