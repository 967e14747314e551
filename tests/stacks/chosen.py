"""Which Pythons are compared: all that can be had, or those of INGERO_STACKS_ONLY, such as 3.8,3.13t,3.14."""

from __future__ import annotations

import os
import re

_VERSION = re.compile(r"\d+\.\d+")


def is_chosen(name: str) -> bool:
    """Of a name that begins with a version: 3.14, 3.14.10-sid, 3.13t."""
    only = os.environ.get("INGERO_STACKS_ONLY", "")
    found = _VERSION.match(name)
    version = found[0] + ("t" if name[found.end() :].startswith("t") else "") if found else name
    return not only or version in only.split(",")
