"""Tests of reading other tools' profiles."""
