"""C source for the exported names that the simulated libraries do not implement: present, and refusing."""

from __future__ import annotations

from collections.abc import Collection


def source(names: Collection[str], unsupported: int) -> str:
    """Return C source that defines each name as a function that returns `unsupported`.

    A name that also exists with a "p" in front (NCCL) becomes its weak alias, as in the real library.
    """
    lines = ['#include "api.h"']
    for name in names:
        if f"p{name}" in names:
            lines.append(f'int {name}(void) __attribute__((weak, alias("p{name}"), visibility("default")));')
        else:
            lines.append(f"API_UNSUPPORTED({name}, {unsupported})")
    return "\n".join(lines) + "\n"
