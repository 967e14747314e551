"""The options that ingero.yaml may hold: one row each, from which flags, variables, keys, schema and help are made.

Options of `ingero trace` stand at the top level of the file, options of other commands below the command's name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ingero.cli.update.source import DEFAULT_URL, refuse_url
from ingero.discover.python_walkers import PyWalker
from ingero.errors import IngeroError
from ingero.program import command
from ingero.serve.http.addresses import Address, parse_address
from ingero.serve.otlp_endpoint import parse_endpoint
from ingero.units import parse_duration_s, parse_size_bytes

TRUE_WORDS, _FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%?")
_NODE = re.compile(r"[A-Za-z0-9._-]{1,253}")  # what a host name may hold; a colon would end it in event ids
_MAX_SAMPLING_RATE = (1 << 32) - 1  # the BPF program's constant is 32 bits wide
_MIN_DB_BYTES = 1 << 20  # an empty database with its indexes takes a quarter of it
_MIN_RING_BYTES, _MAX_RING_BYTES = 64 << 10, 1 << 30  # 280 records; beyond 1 GiB no sync is that late


class OptionError(IngeroError):
    """The value of an option cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the option table.

    name: the flag without its dashes; it is also the key in ingero.yaml, and INGERO_NAME in the environment.
    section: of ingero.yaml; "" is the top level. field: of `TraceSettings`, or the command's parameter.
    parse: converts the text; raises IngeroError. default: as text; empty: see help.
    metavar: stands for the value in the help, and is its kind: "" is a switch, D a duration, SIZE, P a percentage,
    F a file, N a number, words with | between them. separator: between several values.
    """

    name: str
    field: str
    parse: Callable[[str], object]
    default: str
    metavar: str
    help: str
    separator: str = ","
    section: str = ""

    @property
    def key(self) -> str:
        """The option's key in ingero.yaml: `max-db`, `dashboard.addr`."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def is_switch(self) -> bool:
        """Whether the option is a switch: `--name`, `--name=false`, `--no-name`."""
        return not self.metavar

    @property
    def variable(self) -> str:
        """The name of the option's environment variable."""
        return "INGERO_" + self.key.upper().replace("-", "_").replace(".", "_")


def parse_switch(text: str) -> bool:
    """True for `true`, `yes`, `on`, `1`; False for their opposites."""
    if text.lower() not in (*TRUE_WORDS, *_FALSE_WORDS):
        raise OptionError(f"{text!r} is neither true nor false", hint="write true or false")
    return text.lower() in TRUE_WORDS


def _pids(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(\s*,\s*\d+)*", text):
        raise OptionError(f"{text!r} is not a list of process ids like 1234,5678", hint="pgrep -f 'the program'")
    pids = tuple(int(part) for part in text.split(","))
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            raise OptionError(f"no process {pid} is running", hint=f"`{command('check')}` lists the CUDA processes")
    return pids


def _duration_s(text: str) -> float:
    seconds = parse_duration_s(text)
    if not seconds:
        raise OptionError(f"{text!r} is too short", hint="write it like 90s, 5m, 1h30m or 2d")
    return seconds


def _db_bytes(text: str) -> int:
    size = parse_size_bytes(text)
    if 0 < size < _MIN_DB_BYTES:
        raise OptionError(f"{text!r} is less than a database needs", hint="give it 1m or more; 0 means no limit")
    return size


def _ring_bytes(text: str) -> int:
    size = parse_size_bytes(text)
    if not _MIN_RING_BYTES <= size <= _MAX_RING_BYTES:
        raise OptionError(f"{text!r} is not a valid ring buffer size", hint="between 64k and 1g; 8m is the default")
    return size


def _ratio(text: str) -> float:
    return parse_percent(text) / 100


def parse_percent(text: str) -> float:
    """The percentage (0 to 100) in a text like `2%` or `0.5`.

    Raises:
        OptionError: the text is no percentage.
    """
    found = _PERCENT.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise OptionError(f"{text!r} is not a percentage from 0 to 100", hint="write it like 2% or 0.5%")
    return float(found[1])


def _sampling_rate(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_SAMPLING_RATE:
        raise OptionError(f"{text!r} is not a sampling rate", hint="100 records one call in 100; 0 adapts to the load")
    return int(text)


def is_node_name(text: str) -> bool:
    """Whether the text is a valid node name."""
    return _NODE.fullmatch(text) is not None


def _node(text: str) -> str:
    if not is_node_name(text):
        raise OptionError(
            f"{text!r} is not a valid node name", hint="use letters, digits, dots, dashes and underscores"
        )
    return text


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part).absolute() for part in text.split(":") if part)


def _driver_only(text: str) -> bool:
    if text not in ("driver", "both"):
        raise OptionError(f"{text!r} is neither driver nor both", hint="write driver or both")
    return text == "driver"


def _py_walker(text: str) -> PyWalker:
    try:
        return PyWalker(text)
    except ValueError:
        raise OptionError(f"{text!r} reads no Python frames", hint="write auto, ebpf or userspace") from None


def _scraped_at(text: str) -> Address:
    return parse_address(text)


def _text(text: str) -> str:
    if not text:
        raise OptionError("it is empty", hint="leave the option out instead")
    return text


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(
            f"{text!r} is not a command: {error}", hint="quote it as for a shell: 'notify --to ops'"
        ) from None
    if not words or not words[0] or "\0" in text:
        raise OptionError(f"{text!r} names no program", hint="write it like '/usr/local/bin/notify --to ops'")
    return words


def _option(
    name: str, parse: Callable[[str], object], default: str, metavar: str, help_text: str, separator: str = ","
) -> Option:
    return Option(
        name=name,
        field=name.replace("-", "_"),
        parse=parse,
        default=default,
        metavar=metavar,
        help=help_text,
        separator=separator,
    )


def _switch(name: str, default: str, help_text: str) -> Option:
    return _option(name, parse_switch, default, "", help_text)


# In the order of the help.
OPTIONS: tuple[Option, ...] = (
    _option("pid", _pids, "", "A,B", "Trace only these processes and their children."),
    _option("user", _text, "", "U", "Trace the processes of this user (name or uid), or of all. Default: the user that "
            "called sudo; for root and for services, all."),
    _option("duration", _duration_s, "", "D", "Stop after this time: 90s, 5m, 1h30m."),
    _option("db", _text, "", "F", "Database file. Default: ~/.ingero/ingero.db of the user that called sudo."),
    _option("max-db", _db_bytes, "10g", "SIZE", "Keep the database below this size by pruning the oldest detail; 0: "
            "no limit."),
    _switch("record", "true", "Write the database; off: only show what happens."),
    _switch("record-all", "false", "Store every call, not only rare, slow and sampled ones."),
    _option("sampling-rate", _sampling_rate, "0", "N", "Store one ordinary call in N; 0: about 10 per second."),
    _option("launches-at", _driver_only, "both", "driver|both", "Probe launches in the runtime and the driver, or in "
            "the driver only: cheaper, but the caller of a launch is then always the CUDA runtime."),
    _option("cuda-lib", _paths, "", "PATH", "Also probe this file: a renamed library, or a program with the CUDA "
            "runtime linked in. Several: A:B.", ":"),
    _switch("stack", "true", "Record the Python and native stack of each recorded call."),
    _option("py-walker", _py_walker, "auto", "W", "How Python frames are read. ebpf: in the kernel, for each recorded "
            "call; userspace: by the agent, for sleeping threads and calls in flight for over 2 s; auto: in the kernel "
            "where possible."),
    _switch("nccl", "true", "Probe NCCL."),
    _switch("io", "true", "Record block I/O."),
    _switch("tcp", "true", "Record TCP retransmits."),
    _switch("net", "true", "Count the bytes that traced processes send and receive on sockets."),
    _option("deadband", parse_percent, "0", "P", "Store a system snapshot only when a value has changed by more than P "
            "percent; 0: every second."),
    _option("heartbeat", _duration_s, "60s", "D", "With --deadband: store a snapshot at least this often."),
    _option("max-overhead", _ratio, "2%", "P", "Limit the time that tracing may cost the busiest traced thread; 0: no "
            "limit."),
    _option("max-cpu", _ratio, "5%", "P", "Limit the CPU time of ingero itself: percent of one core, averaged over a "
            "minute; 0: no limit."),
    _option("ringbuf-size", _ring_bytes, "8m", "SIZE", "Size of the kernel buffer for recorded calls, a power of two."),
    _option("node", _node, "", "NAME", "Name of this host in the recording. Default: the name of the Kubernetes node "
            "where the pod has it (NODE_NAME, by the downward API), else the host name."),
    _option("serve", _scraped_at, "", "ADDR", "Serve the recording at ADDR, such as 0.0.0.0:8080, as `ingero "
            "dashboard` would: to browsers and to `--nodes` of other hosts, from an unprivileged process."),
    _option("on-incident", _command, "", "CMD", "Run this command as an incident opens and as it closes, with the "
            "incident as JSON on standard input: without root's rights, without a shell, one at a time, at most 10 s."),
    _option("prometheus", _scraped_at, "", "ADDR", "Serve metrics to Prometheus at http://ADDR/metrics, such as "
            "127.0.0.1:9464; a port alone listens on this host only."),
    _option("otlp", parse_endpoint, "", "URL", "Push metrics to this OTLP receiver every 10 s: collector:4318 over "
            "TLS, or a URL, whose path is kept. Default: OTEL_EXPORTER_OTLP_ENDPOINT."),
    _switch("otlp-insecure", "false", "Push without TLS; to another host only with an http:// URL in --otlp."),
    _switch("metrics-compat", "false", "With --prometheus: also serve the metric names of Ingero 0.x."),
    _switch("json", "false", "Print one JSON object per second."),
    _switch("verbose", "false", "Also show recorded calls, and why calls are not probed."),
    _switch("debug", "false", "Log debug messages to standard error."),
    _option("log", _text, "", "F", "Log to this file."),
)  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}

FLEET = "fleet"


def _file(text: str) -> Path:
    return Path(_text(text))


def _given_duration(text: str) -> str:
    parse_duration_s(text)
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _https(text: str) -> str:
    refuse_url(text)
    return text


# Of no single command; at the top level of the file, too.
GENERAL: tuple[Option, ...] = (
    _switch("update-check", "false", "Check once a day, in the background, whether a newer version exists, and "
            "report it after an interactive command. Otherwise nothing leaves this host."),
    _option("update-url", _https, DEFAULT_URL, "URL", "URL to check; it answers like GitHub's releases API."),
)  # fmt: skip

_SECTIONS: dict[str, tuple[Option, ...]] = {
    "dashboard": (
        _option("addr", parse_address, "127.0.0.1:8080", "HOST:PORT", "Address to listen on; port 0: any free port."),
        _option("tls-cert", _file, "", "F", "TLS certificate, PEM. Default: a self-signed one, created at each start."),
        _option("tls-key", _file, "", "F", "Private key of --tls-cert, PEM."),
        _option("client-ca", _file, "", "F", "Accept only clients with a certificate from this authority, PEM."),
        _option("token-file", _file, "", "F", "File with the access token that clients must send; nobody else "
                "may be able to read it."),
        _switch("no-tls", "false", "Serve plain HTTP; only on addresses of this host."),
        _switch("trusted-network", "false", "With a token, allow --no-tls on other addresses as well."),
        _option("host", _names, "", "NAME", "Also answer to this host name, such as that of a proxy."),
        _option("relay", _text, "", "N,N", "Let clients query these nodes through this one (--via), which uses its own "
                "fleet credentials: gpu[001-512], 10.1.0.0/16, @FILE. Requires --client-ca or a token.", "\n"),
    ),
    "mcp": (
        _option("tls-cert", _file, "", "F", "TLS certificate for --http, PEM."),
        _option("tls-key", _file, "", "F", "Private key of --tls-cert, PEM."),
        _option("test-report", _file, "", "F", "JUnit file for the tool get_test_report."),
    ),
    "query": (
        _option("timeout", _given_duration, "", "D", "Give up after this time. Default: 60s, for a node 5s; 0: never, "
                "for a node 1h."),
    ),
    "explain": (
        _option("timeout", _given_duration, "", "D", "With --nodes: wait this long for each node. Default: 30s."),
    ),
    FLEET: (
        _option("nodes", _text, "", "N,N", "Query these nodes, each serving a dashboard, instead of a recording: "
                "gpu-01,gpu-02:8081, gpu[001-512], @FILE, slurm:JOB, k8s:NAMESPACE/SELECTOR, "
                "srv:_ingero._tcp.DOMAIN.", "\n"),
        _option("via", _text, "", "N,N", "Query nodes through these, each with an even share; they run dashboard "
                "--relay. Given again: relays that the relays before it query.", "\n"),
        _switch("retry-directly", "false", "Query nodes directly if their relay fails."),
        _option("ca-cert", _file, "", "F", "Certificate authority of the nodes, PEM."),
        _option("client-cert", _file, "", "F", "Client certificate to present to nodes, PEM."),
        _option("client-key", _file, "", "F", "Private key of --client-cert, PEM."),
        _option("token-file", _file, "", "F", "File with the access token of the nodes."),
        _switch("pin", "false", "Trust each node by the certificate that it presented first "
                "(~/.ingero/known_nodes), whatever authority signed it."),
    ),
}  # fmt: skip
SECTIONS: dict[str, tuple[Option, ...]] = {
    name: tuple(replace(option, section=name) for option in options) for name, options in _SECTIONS.items()
}
ALL_OPTIONS = (*OPTIONS, *GENERAL, *(option for options in SECTIONS.values() for option in options))
