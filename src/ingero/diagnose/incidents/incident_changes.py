"""Changes of an incident while a recording is watched, for the code that shows or stores them.

Kept apart from the diagnosis, so that code that only passes changes on need not load it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingero.diagnose.findings import Incident


class ChangeKind(enum.Enum):
    """What happened to an incident."""

    OPENED = "opened"
    UPDATED = "updated"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Change:
    """One incident and what happened to it; the incident's end_ns is None until it is closed."""

    kind: ChangeKind
    incident: Incident
