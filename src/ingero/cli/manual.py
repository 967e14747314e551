"""Parts of docs/commands.md that the help does not have: exit codes and environment variables of each command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ingero.capture.loop.single_agent import RUN_FOLDER_VARIABLE
from ingero.cli.check.command import EXIT_NOT_READY
from ingero.cli.compare import EXIT_REGRESSION, EXIT_UNDECIDED, EXIT_WORSE
from ingero.cli.config.command import EXIT_FAULTS
from ingero.cli.config.file import CONFIG_VARIABLE
from ingero.cli.demo import EXIT_WRONG_VERDICT
from ingero.cli.explain import EXIT_FOUND
from ingero.cli.fleet.options import TOKEN_VARIABLE as FLEET_TOKEN
from ingero.cli.fleet.output import EXIT_PARTIAL
from ingero.cli.main import EXIT_ERROR, EXIT_INTERRUPTED
from ingero.cli.output import EXIT_CLOSED_PIPE
from ingero.cli.service.command import EXIT_NOT_ACTIVE
from ingero.cli.update.notice import SILENCE_VARIABLE
from ingero.cli.version import EXIT_NEWER
from ingero.serve.dashboard.exposure import TOKEN_VARIABLE as DASHBOARD_TOKEN
from ingero.serve.mcp.http import TOKEN_VARIABLE as MCP_TOKEN
from ingero.serve.metrics.push_settings import (
    CERTIFICATE_VARIABLE,
    CLIENT_CERTIFICATE_VARIABLE,
    CLIENT_KEY_VARIABLE,
    COMPRESSION_VARIABLE,
    HEADERS_VARIABLE,
    HISTOGRAM_VARIABLE,
    INTERVAL_VARIABLE,
    PROTOCOL_VARIABLE,
    RESOURCE_VARIABLE,
    SERVICE_VARIABLE,
    TEMPORALITY_VARIABLE,
    TIMEOUT_VARIABLE,
)
from ingero.serve.otlp_endpoint import ENDPOINT_VARIABLE, METRICS_ENDPOINT_VARIABLE
from ingero.store.opening.locations import DATABASE_VARIABLE

# Of every command.
EXIT_CODES: Mapping[int, str] = MappingProxyType({
    0: "Done.",
    EXIT_ERROR: "Error; standard error says what failed and how to fix it.",
    EXIT_INTERRUPTED: "Interrupted by Ctrl-C, where that is not the usual way to stop.",
    EXIT_CLOSED_PIPE: "The output was closed before its end, as by `| head`.",
})  # fmt: skip

# Variables that set an option, by parameter, where a command has it.
VARIABLES: Mapping[str, str] = MappingProxyType({"db": DATABASE_VARIABLE, "config": CONFIG_VARIABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """The manual of a command. exits: exit codes beyond the common ones. variables: those that are no option."""

    exits: Mapping[int, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


MANUALS: Mapping[str, Manual] = MappingProxyType({
    "check": Manual(
        exits={
            0: "Ready to trace; with `--recording`: the last second has been written.",
            EXIT_NOT_READY: "Not ready: something is missing; with `--recording`: nothing is being written.",
        },
    ),
    "trace": Manual(
        exits={0: "The recording has ended: by Ctrl-C, after `--duration`, or with the processes of `--pid`."},
        variables={
            RUN_FOLDER_VARIABLE: "Folder of the lock that prevents a second agent; default /run/ingero.",
            DASHBOARD_TOKEN: "With `--serve`: access token that clients must send; instead of `--token-file`.",
            ENDPOINT_VARIABLE: "Without `--otlp`: base URL of an OTLP receiver; `/v1/metrics` is added to its path.",
            METRICS_ENDPOINT_VARIABLE: "Without `--otlp`: URL of an OTLP receiver, used unchanged.",
            PROTOCOL_VARIABLE: "`http/protobuf` (default) or `http/json`; gRPC is not supported.",
            HEADERS_VARIABLE: "Headers to send, such as a token: `name=value,name=value`.",
            COMPRESSION_VARIABLE: "`none` (default) or `gzip`.",
            TIMEOUT_VARIABLE: "Timeout of a push, in milliseconds; default 5000.",
            INTERVAL_VARIABLE: "Time between pushes, in milliseconds; default 10000.",
            CERTIFICATE_VARIABLE: "File with the certificate authority to trust.",
            CLIENT_CERTIFICATE_VARIABLE: "File with the client certificate to present.",
            CLIENT_KEY_VARIABLE: "File with the private key of that certificate.",
            TEMPORALITY_VARIABLE: "`cumulative` (default), `delta` or `lowmemory` (here: the same as delta).",
            HISTOGRAM_VARIABLE: "`base2_exponential_bucket_histogram` (default) or `explicit_bucket_histogram`.",
            RESOURCE_VARIABLE: "Attributes of the resource, `name=value,name=value`; they override ingero's own.",
            SERVICE_VARIABLE: "Its `service.name`; default `ingero`.",
        },
    ),
    "explain": Manual(
        exits={
            0: "No incidents found.",
            EXIT_FOUND: "Incidents found.",
            EXIT_PARTIAL: "With `--nodes`: nodes are missing, whatever the others answered.",
        },
        variables={FLEET_TOKEN: "With `--nodes`: access token of the nodes; instead of `--token-file`."},
    ),
    "compare": Manual(
        exits={
            0: "Better, or no difference beyond noise; with `--max-regression`: within the limit.",
            EXIT_WORSE: "Worse; without `--max-regression`.",
            EXIT_REGRESSION:
                "With `--max-regression`: worse than the limit, and beyond noise. With `--nodes`: nodes are missing.",
            EXIT_UNDECIDED:
                "With `--max-regression`: cannot be decided: the recordings are not comparable, or what is over the "
                "limit is within their noise.",
        },
    ),
    "query": Manual(
        exits={EXIT_PARTIAL: "With `--nodes`: the answer is partial, because nodes are missing."},
        variables={FLEET_TOKEN: "With `--nodes`: access token of the nodes; instead of `--token-file`."},
    ),
    "mcp": Manual(
        variables={MCP_TOKEN: "Bearer token for `--http`; required where other hosts can reach the address."},
    ),
    "demo": Manual(
        exits={0: "Each verdict was the expected one.", EXIT_WRONG_VERDICT: "A verdict was not the expected one."},
    ),
    "dashboard": Manual(
        variables={
            DASHBOARD_TOKEN: "Access token that clients must send; required where other hosts can reach the address.",
            FLEET_TOKEN: "With `--nodes`: access token of the nodes.",
        },
    ),
    "service": Manual(
        exits={EXIT_NOT_ACTIVE: "`status`: the agent is not running."},
    ),
    "config": Manual(
        exits={EXIT_FAULTS: "`check`: the file has errors. `path`: there is no file."},
    ),
    "fleet": Manual(
        exits={EXIT_PARTIAL: "Nodes are missing from the file."},
    ),
    "version": Manual(
        exits={EXIT_NEWER: "With `--check`: a newer version exists."},
        variables={
            "INGERO_UPDATE_URL": "URL that `--check` queries; `update-url` in ingero.yaml.",
            "INGERO_UPDATE_CHECK": "`true`: check once a day; `update-check` in ingero.yaml.",
            SILENCE_VARIABLE: "Set to anything: no notice after commands, and no daily check.",
        },
    ),
})  # fmt: skip
