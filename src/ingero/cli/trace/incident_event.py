"""An incident that opened or closed, as the JSON that `--on-incident` gives to a command."""

from __future__ import annotations

import json

from ingero.cli.change_line import change_line
from ingero.diagnose.incidents.incident_changes import Change
from ingero.diagnose.incidents.incident_json import Json, Object, incident_json
from ingero.foreign_text import label

VERSION = 1
MAX_BYTES = 256 << 10
# Characters that chat services read as mentions and links in a field `text`; a process may have any name.
_IN_CHAT = str.maketrans({"<": "‹", ">": "›", "@": "\uff20"})


def incident_event(change: Change, *, node: str, recording: str, now_ns: int) -> bytes:
    """The change as one ASCII JSON object of at most MAX_BYTES.

    left_out: fields of the incident that had no room. text: one line without mentions, links or control characters.
    """
    incident = incident_json(change.incident)
    event: Object = {
        "version": VERSION,
        "event": change.kind.value,
        "time_unix_ns": now_ns,
        "node": node,
        "recording": recording,
        "text": label(f"{node}: {change_line(change, now_ns)}").translate(_IN_CHAT),
        "incident": incident,
    }
    left_out: list[Json] = []
    while len(raw := json.dumps({**event, "left_out": left_out}).encode()) > MAX_BYTES and incident:
        largest = max(incident, key=lambda name: len(json.dumps(incident[name])))
        del incident[largest]
        left_out.append(largest)
    return raw
