"""Metrics of an ongoing recording, for Prometheus and for OTLP receivers."""
