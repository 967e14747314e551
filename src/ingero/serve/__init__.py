"""Rendering and publishing of recordings: text, JSON, HTTP servers, exports, metrics."""
