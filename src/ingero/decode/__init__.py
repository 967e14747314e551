"""Bytes become records: layouts, symbols, clocks."""
