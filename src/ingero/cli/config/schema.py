"""The JSON Schema of ingero.yaml for editors, and an example file with every option."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from ingero.cli.config.option_table import GENERAL, OPTIONS, SECTIONS, TRUE_WORDS, Option
from ingero.discover.python_walkers import PyWalker

SCHEMA_NAME = "ingero.schema.json"
_WIDTH = 100
_SWITCH_WORDS = (*TRUE_WORDS, "false", "no", "off", "0")
_SHAPES: dict[str, dict[str, Any]] = {
    "D": {"type": ["string", "number"], "minimum": 0, "examples": ["90s", "5m", "1h30m", "2d"]},
    "SIZE": {"type": ["string", "integer"], "minimum": 0, "examples": ["500m", "10g"]},
    "P": {"type": ["string", "number"], "minimum": 0, "maximum": 100, "pattern": r"^\s*\d+(\.\d+)?\s*%?\s*$"},
    "N": {"type": "integer", "minimum": 0},
    "F": {"type": "string", "minLength": 1},
    "CMD": {"type": "string", "minLength": 1},
    "U": {"type": ["string", "integer"]},
    "A,B": {"anyOf": [{"type": ["string", "integer"]}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]},
    "URL": {"type": "string", "format": "uri"},
}
_LISTED = ("PATH", "N,N")  # one text, or several
_SECTION_TEXTS = {
    "dashboard": "Of `ingero dashboard`.",
    "mcp": "Of `ingero mcp`. The token stands in INGERO_MCP_TOKEN.",
    "query": "Of `ingero query`.",
    "explain": "Of `ingero explain`.",
    "fleet": "Of commands that ask many nodes: query, explain, mcp.",
}
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA_NAME}
#
# (`ingero config schema > {SCHEMA_NAME}` beside this file lets editors complete and check it.)
# Every option that ingero.yaml may hold, with its default. Generated from the options of the commands; do not edit.
# It is read from --config F or INGERO_CONFIG, else ~/.config/ingero/ingero.yaml, else /etc/ingero/ingero.yaml; one
# file, never that of the current folder. A flag overrides the environment, and the environment this file.
# `ingero config check` says what is wrong in it, `ingero config show` where each value comes from.
# No secret stands here: tokens are in files (token-file) or in the environment.
"""


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ingero.yaml",
        "description": "Options of ingero: those of trace at the top level, others below the command's name.",
        **_object_schema((*OPTIONS, *GENERAL), _sections()),
    }


def example() -> str:
    """The text of a file with every option as a comment."""
    parts = [_HEAD, "# -- of ingero trace; `db` is also what the other commands read --\n"]
    parts += [_commented(option, "") for option in OPTIONS]
    parts += ["# -- of every command --\n", *(_commented(option, "") for option in GENERAL)]
    for section, options in SECTIONS.items():
        parts.append(f"# {_SECTION_TEXTS[section]}\n{section}:\n")
        parts += [_commented(option, "  ") for option in options]
    return "\n".join(parts)


def _sections() -> dict[str, dict[str, Any]]:
    return {
        section: {"description": _SECTION_TEXTS[section], **_object_schema(options, {}), "type": ["object", "null"]}
        for section, options in SECTIONS.items()
    }


def _object_schema(options: Iterable[Option], sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of a mapping: keys with dashes are listed, other spellings are accepted."""
    options = list(options)
    others = dict(_other_spellings(options))
    return {
        "type": "object",
        "properties": {**{option.name: _shape(option) for option in options}, **sections},
        **({"patternProperties": others} if others else {}),
        "additionalProperties": False,
    }


def _other_spellings(options: Iterable[Option]) -> Iterator[tuple[str, dict[str, Any]]]:
    for option in options:
        spelled = option.name.replace("-", "[-_]")
        if "-" in option.name:
            yield f"^{spelled}$", _shape(option)
        if option.is_switch:
            yield f"^no[-_]{spelled}$", _value(option)


def _shape(option: Option) -> dict[str, Any]:
    default = option.default == "true" if option.is_switch else option.default
    found = {"description": option.help, **_value(option)}
    return {**found, "default": default} if option.default else found


def _value(option: Option) -> dict[str, Any]:
    if option.is_switch:
        return {"anyOf": [{"type": "boolean"}, {"enum": [*_SWITCH_WORDS, 0, 1]}]}
    if "|" in option.metavar:
        return {"enum": option.metavar.split("|")}
    if option.key == "py-walker":
        return {"enum": [walker.value for walker in PyWalker]}
    if option.metavar in _LISTED or option.name == "host":
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    return _SHAPES.get(option.metavar, {"type": ["string", "integer"]})


def _commented(option: Option, indent: str) -> str:
    lines = textwrap.wrap(option.help, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    value = option.default or _SAMPLES.get(option.key) or _SAMPLES.get(option.metavar, option.metavar)
    return "\n".join([*lines, f"{indent}# {option.name}: {value}", ""])


# Values in the example for options without a plain default: by key, else by metavar.
_SAMPLES = {
    "ADDR": "127.0.0.1:8080",
    "D": "30s",
    "F": "/etc/ingero/FILE",
    "HOST:PORT": "collector:4318",
    "NAME": "gpu-01",
    "P": "1%",
    "SIZE": "1g",
    "pid": "[1234, 5678]",
    "user": "all",
    "duration": "1h30m",
    "db": "/var/lib/ingero/ingero.db",
    "log": "/var/log/ingero.log",
    "cuda-lib": "[/opt/app/libcudart.so, /opt/app/server]",
    "serve": "0.0.0.0:8080",
    "on-incident": "/usr/local/bin/notify --to ops",
    "otlp": "https://collector.example:4318",
    "prometheus": "127.0.0.1:9464",
    "dashboard.tls-cert": "/etc/ingero/node.pem",
    "dashboard.tls-key": "/etc/ingero/node.key",
    "dashboard.client-ca": "/etc/ingero/ca.pem",
    "dashboard.token-file": "/etc/ingero/token",
    "dashboard.host": "[gpu-01.example]",
    "dashboard.relay": '["gpu[001-512]", "10.1.0.0/16"]',
    "mcp.tls-cert": "/etc/ingero/node.pem",
    "mcp.tls-key": "/etc/ingero/node.key",
    "mcp.test-report": "report.xml",
    "fleet.nodes": '["gpu[001-512]", "gpu-extra:8081"]',
    "fleet.via": "relay[01-08]",
    "fleet.ca-cert": "~/.ingero/certs/ca.pem",
    "fleet.client-cert": "~/.ingero/certs/me.pem",
    "fleet.client-key": "~/.ingero/certs/me.key",
    "fleet.token-file": "~/.ingero/fleet-token",
}
