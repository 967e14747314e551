"""What happens to an incident while it is watched: as it is told to whoever shows or stores it.

Who only passes them on need not load the diagnosis.
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
    """One incident and what happened to it; end_ns of the incident is None until it is closed."""

    kind: ChangeKind
    incident: Incident
