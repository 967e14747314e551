"""The MCP server: what an AI assistant may ask of a recording."""
