"""Writes recordings in the formats of other tools: Perfetto, Chrome, flame graphs, pprof."""
