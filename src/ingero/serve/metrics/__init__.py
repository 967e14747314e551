"""Metrics of a recording that goes on, for Prometheus and for OTLP receivers."""
