"""The MCP server: access to a recording for AI assistants."""
