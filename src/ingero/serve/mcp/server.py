"""The MCP server: tools, prompt and resources on the MCP SDK, for any transport."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp_types import ToolAnnotations
from pydantic import ValidationError

from ingero import __version__
from ingero.errors import IngeroError
from ingero.serve.mcp import texts
from ingero.serve.mcp.arguments import ArgumentError, cleaned, complaint
from ingero.serve.mcp.tools import Surroundings, Tools
from ingero.serve.mcp.untrusted import harmless
from ingero.serve.recording_source import RecordingSource

NAME = "ingero"
_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_MAX_ERROR = 1024


class IngeroServer(MCPServer[Any]):
    """Answers an expected error with what failed and the way out, instead of hiding it."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        """Calls a tool; what it answers is as the SDK says."""
        tool = self._tool_manager.get_tool(name)
        fields = tool.fn_metadata.arg_model.model_fields if tool else {}
        try:
            given = cleaned(fields, arguments) if tool else arguments
            return await super().call_tool(name, given, context)
        except ArgumentError as error:  # what it quotes is marked already
            raise ToolError(str(error)) from error
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, IngeroError):
                raise ToolError(_error_text(error.__cause__)) from error
            raise
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):  # the SDK's text has links, and no way out
                raise ToolError(complaint(fields, error.__cause__)) from error
            raise


def make_server(source: RecordingSource, around: Surroundings) -> IngeroServer:
    """A server for one recording."""
    server = IngeroServer(
        NAME,
        title="ingero: why the GPU stalls",
        version=__version__,
        instructions=texts.INSTRUCTIONS,
        log_level="WARNING",
    )
    logging.getLogger("mcp").setLevel(logging.WARNING)
    for tool in Tools(source, around).all():
        server.add_tool(tool, description=" ".join((tool.__doc__ or "").split()), annotations=_READS)
    server.add_prompt(_prompt())
    _add_resources(server)
    return server


def _prompt() -> Prompt:
    def investigate(question: str = "", since: str = "") -> str:
        return texts.investigation(question, since)

    return Prompt.from_function(
        investigate,
        name="investigate",
        title="Investigate a stall",
        description="From the worst incident to its evidence and fix, step by step, without guessing. "
        'question: what was noticed; since: only the end of the recording ("5m").',
    )


def _add_resources(server: IngeroServer) -> None:
    def add(uri: str, title: str, description: str, mime_type: str, read: Callable[[], str]) -> None:
        name = uri.partition("://")[2]
        server.resource(uri, name=name, title=title, description=description, mime_type=mime_type)(read)

    about = "The views that run_sql may query: every column with its unit and meaning, and an example each."
    add("ingero://schema", "Schema", about, "text/markdown", texts.schema_text)
    about = "Every traced operation: its numbers, and the meaning of its arguments in the view events."
    add("ingero://ops", "Operations", about, "application/json", lambda: json.dumps(texts.operations()))


def _error_text(error: IngeroError) -> str:
    hint = f"\nhint: {harmless(error.hint, most=_MAX_ERROR)}" if error.hint else ""
    return harmless(str(error), most=_MAX_ERROR) + hint
