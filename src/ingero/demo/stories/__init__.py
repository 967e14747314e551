"""The demos, one scenario a file; each shows one cause, with a number of its own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from ingero.demo.stories import cold_start, cpu_contention, gpu_contention, incident, memcpy_bottleneck, periodic_spike
from ingero.demo.stories.story import Story
from ingero.errors import IngeroError
from ingero.program import command

STORIES: tuple[Story, ...] = (
    incident.STORY,
    cold_start.STORY,
    memcpy_bottleneck.STORY,
    periodic_spike.STORY,
    cpu_contention.STORY,
    gpu_contention.STORY,
)
ALIASES: Mapping[str, str] = MappingProxyType(dict.fromkeys(("gpu-steal", "contention"), "gpu-contention"))


class NoSuchStoryError(IngeroError):
    """There is no demo of that name."""


def story_of(name: str) -> Story:
    """The scenario with this name or alias.

    Raises:
        NoSuchStoryError: there is none.
    """
    wanted = ALIASES.get(name, name)
    found = next((one for one in STORIES if one.name == wanted), None)
    if found is None:
        names = [one.name for one in STORIES]
        near = difflib.get_close_matches(name.lower(), [*names, *ALIASES], n=1)
        meant = f"did you mean {command('demo', *near)}? " if near else ""
        raise NoSuchStoryError(f"there is no demo {name!r}", hint=f"{meant}{command('demo')} takes {', '.join(names)}")
    return found
