"""The files for systemd: two units, their user, and the first settings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingero.errors import IngeroError

USER = "ingero"
STATE_FOLDER = "/var/lib/ingero"
PROGRAM = ("/usr/bin/ingero",)
TRACE, DASHBOARD = "ingero.service", "ingero-dashboard.service"
SYSUSERS = "ingero.conf"
_WORD = re.compile(r"[A-Za-z0-9_@+:,./=-]+")

# BPF programs and their events; maps of other users' processes; libraries that were deleted since they were loaded, and
# the interpreter of other users' Pythons, for which both of the last two are needed.
CAPABILITIES = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH")

_TRACE = """\
[Unit]
Description=ingero: why the GPU stalls
Documentation=https://github.com/ingero-io/ingero
After=local-fs.target network.target
StartLimitIntervalSec=2min
StartLimitBurst=10

[Service]
# Ready when the first second is in the file, ended when none comes for a minute; its status is the last verdict.
Type=notify
NotifyAccess=main
WatchdogSec=60
ExecStart={program} trace
# Rereads ingero.yaml: what cannot be used is said, and recording goes on as before.
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
# The main process ends its own; the indexes of a large recording take a while.
KillMode=mixed
TimeoutStopSec=5min
User={user}
StateDirectory=ingero
StateDirectoryMode=0750
# The lock in it may be another agent's, in a container or of root: it stays.
RuntimeDirectory=ingero
RuntimeDirectoryPreserve=yes
UMask=0077
MemoryMax=1G
LimitMEMLOCK=infinity
# It reports who takes the CPUs while they are taken, and uses no more of them for it. What reads foreign files has the
# usual priority.
Nice=-10

# What it needs, and nothing else: BPF programs, the mappings of other users' processes, and (the last two together)
# libraries that were deleted and the interpreters of other users' Pythons.
AmbientCapabilities={capabilities}
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes

# Processes that are traced must be seen as they are: no PrivateTmp, ProtectProc, PrivateUsers, and homes stay readable
# for the libraries in them. NVML needs /dev/nvidia*.
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=no
PrivateDevices=no
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
PrivateMounts=yes
RemoveIPC=yes
# A driver library that is not root's is then not asked for its entry points: its exported ones are probed.
RestrictNamespaces=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @obsolete @raw-io @reboot @swap @cpu-emulation
# After the line above, which takes them away: capset is how what reads foreign files gives its rights up.
SystemCallFilter=bpf perf_event_open capset
# Nothing leaves the host, and nobody else reaches it. For `otlp`, or `prometheus` on another address than this host's:
# systemctl edit ingero, [Service], IPAddressAllow=ADDRESS of the collector or scraper
IPAddressDeny=any
IPAddressAllow=localhost

[Install]
WantedBy=multi-user.target
"""

_DASHBOARD = """\
[Unit]
Description=ingero: its recording in the browser
Documentation=https://github.com/ingero-io/ingero
After=network.target {trace}
StartLimitIntervalSec=2min
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
# Where it listens, and which clients it accepts: `dashboard:` in ingero.yaml. Without that only those on this host.
ExecStart={program} dashboard
Restart=on-failure
RestartSec=5
User={user}
StateDirectory=ingero
StateDirectoryMode=0750
UMask=0077
MemoryMax=1G

# It only reads a file.
CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectProc=invisible
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
PrivateMounts=yes
RemoveIPC=yes
RestrictNamespaces=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @obsolete
# After the line above: the processes that run clients' statements give their rights up by it.
SystemCallFilter=capset

[Install]
WantedBy=multi-user.target
"""

_SYSUSERS = f"""\
# The user that ingero.service and ingero-dashboard.service run as.
u {USER} - "ingero" {STATE_FOLDER}
"""

_SETTINGS = f"""\
# Options of every command on this host; `ingero config example` shows all of them, `ingero config check` what is wrong.
# What the service records into, and what `ingero explain` and the dashboard read:
db: {STATE_FOLDER}/ingero.db
max-db: 10g
"""


class ProgramPathError(IngeroError):
    """The program has a path that cannot stand in a unit."""


def units(program: Sequence[str] = PROGRAM) -> dict[str, str]:
    """The text of each unit by its name. program: the words that start ingero.

    Raises:
        ProgramPathError: a word would need systemd's quoting.
    """
    for word in program:
        if not _WORD.fullmatch(word):
            raise ProgramPathError(f"{word!r} cannot stand in a unit", hint="install ingero at a path without spaces")
    words = {"program": " ".join(program), "user": USER, "capabilities": " ".join(CAPABILITIES), "trace": TRACE}
    return {TRACE: _TRACE.format(**words), DASHBOARD: _DASHBOARD.format(**words)}


def sysusers() -> str:
    """The file for systemd-sysusers, with the user of the units."""
    return _SYSUSERS


def first_settings() -> str:
    """The text of ingero.yaml for a new installation."""
    return _SETTINGS
