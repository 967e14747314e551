"""Acceptance figures of many nodes, a row each, with their bars: `python -m bench.fleet_rows`."""
