"""Resolves flags, environment and ingero.yaml to typed settings: flag > environment > file > default."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ingero.cli.config.file import CONFIG_VARIABLE, find_config
from ingero.cli.config.given import Given, given_values, value_of
from ingero.cli.config.option_table import BY_NAME, OPTIONS, SECTIONS, OptionError, is_node_name, parse_switch
from ingero.discover.python_walkers import PyWalker
from ingero.serve.http.addresses import Address
from ingero.serve.otlp_endpoint import ENDPOINT_VARIABLE, METRICS_ENDPOINT_VARIABLE, Endpoint
from ingero.store.opening.locations import Owner, database_path, invoking_user

# Debian, Fedora and Ubuntu number users from 1000 (UID_MIN of login.defs); 65534 is nobody, as which services run.
_FIRST_USER_UID, _NOBODY_UID = 1000, 65534
_MAX_UID = (1 << 32) - 2  # the one above stands for "no user"
_ALL_USERS = "all"
_POD_NODE_VARIABLES = ("NODE_NAME", "MY_NODE_NAME")  # what charts give spec.nodeName to; the second is Ingero 0.x's


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """The settings of a recording; OPTIONS says which option sets each field.

    pid: empty: every CUDA process of `uid`. uid: None: of all users. duration: s, None: until stopped.
    max_db, ringbuf_size: bytes. max_overhead, max_cpu: ratios. deadband: percent. heartbeat: s.
    launches_at: in the driver only. on_incident: program and arguments; empty: none.
    """

    pid: tuple[int, ...]
    uid: int | None
    duration: float | None
    db: Path
    max_db: int
    record: bool
    record_all: bool
    sampling_rate: int
    launches_at: bool
    cuda_lib: tuple[Path, ...]
    stack: bool
    py_walker: PyWalker
    nccl: bool
    io: bool
    tcp: bool
    net: bool
    deadband: float
    heartbeat: float
    max_overhead: float
    max_cpu: float
    ringbuf_size: int
    node: str
    serve: Address | None
    on_incident: tuple[str, ...]
    prometheus: Address | None
    otlp: Endpoint | None
    otlp_insecure: bool
    metrics_compat: bool
    json: bool
    verbose: bool
    debug: bool
    log: Path | None
    owner: Owner

    @property
    def ring_bytes(self) -> int:
        """The size of the ring buffer that the kernel accepts: a power of two."""
        return 1 << (self.ringbuf_size - 1).bit_length()

    def as_texts(self) -> dict[str, str | int | float | bool | None]:
        """The settings as stored in the row of the session."""
        plain = (str, int, float, bool, type(None))
        values = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != "owner")
        texts = {name: value if isinstance(value, plain) else _joined(value) for name, value in values}
        # its arguments may hold a secret, and recordings are shared
        return texts | {"on_incident": self.on_incident[0] if self.on_incident else None}


def resolve(flags: Mapping[str, str | None], environ: Mapping[str, str], *, uid: int) -> TraceSettings:
    """The settings.

    flags: texts by option name, None where not given; `config` names a file. uid: of this process.

    Raises:
        IngeroError: a value cannot be used, a key is unknown, or two options contradict each other.
    """
    owner = invoking_user(environ, uid=uid)
    path = find_config(flags.get("config") or environ.get(CONFIG_VARIABLE), owner.home)
    given = given_values(OPTIONS, flags, environ, path)
    refuse_contradictions(given, environ)
    values: dict[str, Any] = {option.field: value_of(option, given.get(option.name)) for option in OPTIONS}
    user = values.pop("user")
    values |= {
        "pid": values["pid"] or (),
        "uid": None if values["pid"] else _chosen_uid(user, given.get("user"), owner),
        "db": database_path(_absolute_path(values["db"], owner), environ, uid=uid),
        "cuda_lib": values["cuda_lib"] or (),
        "on_incident": values["on_incident"] or (),
        "node": values["node"] or default_node(environ),
        "log": _absolute_path(values["log"], owner),
        "owner": owner,
    }
    return TraceSettings(**values)


def resolve_section(
    section: str, flags: Mapping[str, str | None], environ: Mapping[str, str], *, uid: int
) -> dict[str, Any]:
    """The values of a command's options that ingero.yaml may hold, by field; None where there is no plain default.

    flags: texts by field, None where not given. uid: of this process.

    Raises:
        IngeroError: a value cannot be used, or a key of the file is unknown.
    """
    owner = invoking_user(environ, uid=uid)
    given = given_values(SECTIONS[section], flags, environ, find_config(environ.get(CONFIG_VARIABLE), owner.home))
    values = {option.field: value_of(option, given.get(option.name)) for option in SECTIONS[section]}
    return {
        field: _expanded_path(value, owner) if isinstance(value, Path) else value for field, value in values.items()
    }


def default_node(environ: Mapping[str, str]) -> str:
    """The Kubernetes node name, where the pod's environment has it; else the host name.

    The host name of a pod is its own and changes with each restart.
    """
    names = (environ.get(variable, "") for variable in _POD_NODE_VARIABLES)
    return next((name for name in names if is_node_name(name)), os.uname().nodename)


def refuse_contradictions(given: dict[str, Given], environ: Mapping[str, str]) -> None:
    """Removes an option that has no effect beside another one from a stronger source.

    Raises:
        OptionError: both options come from the same source.
    """
    for first, second, why in (
        ("pid", "user", "the processes are named already"),
        ("record-all", "sampling-rate", "every call is stored already"),
    ):
        a, b = given.get(first), given.get(second)
        if a is None or b is None or (first == "record-all" and (not a.is_on or b.text == "0")):
            continue
        if a.rank == b.rank:
            raise OptionError(f"{a.origin} and {b.origin} contradict each other: {why}", hint="leave one of them out")
        del given[first if a.rank < b.rank else second]
    record = given.get("record")
    for one in (given.get("serve"), given.get("on-incident")):
        if record and one and record.rank == one.rank and not parse_switch(record.text):
            raise OptionError(
                f"{one.origin} has no effect with {record.origin}: nothing is recorded", hint="leave one out"
            )
    for name, needed, why, hint in (
        ("heartbeat", "deadband", "every snapshot is stored", "add --deadband 5"),
        ("otlp-insecure", "otlp", "nothing is pushed", "add --otlp 127.0.0.1:4318"),
        ("metrics-compat", "prometheus", "nothing is served", "add --prometheus 127.0.0.1:9464"),
    ):
        idle = given.get(name)
        if needed == "otlp" and (environ.get(ENDPOINT_VARIABLE) or environ.get(METRICS_ENDPOINT_VARIABLE)):
            continue
        if idle and needed not in given and not (BY_NAME[name].is_switch and not parse_switch(idle.text)):
            raise OptionError(f"{idle.origin} has no effect without --{needed}: {why}", hint=hint)


def _chosen_uid(user: str | None, given: Given | None, owner: Owner) -> int | None:
    """The uid whose processes are traced; None: all users."""
    if user is None or given is None:
        return owner.uid if owner.uid >= _FIRST_USER_UID and owner.uid != _NOBODY_UID else None
    if user == _ALL_USERS:
        return None
    if user.isdecimal():
        if int(user) > _MAX_UID:
            raise OptionError(f"{given.origin}: no user can have the number {user}", hint="getent passwd lists them")
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise OptionError(f"{given.origin}: there is no user {user!r}", hint="getent passwd lists them") from None


def _absolute_path(text: str | None, owner: Owner) -> Path | None:
    """The absolute path of a text; `~` is the home of the invoking user, not root's."""
    if text is None:
        return None
    return owner.home / text[2:] if text.startswith("~/") else Path(text).absolute()


def _expanded_path(path: Path, owner: Owner) -> Path:
    """The path with `~` as the home of the invoking user; a relative path stays relative."""
    return owner.home.joinpath(*path.parts[1:]) if path.parts[:1] == ("~",) else path


def _joined(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
