#!/usr/bin/env bash
# Installs what `make build` needs: distribution packages when root, Python's into .venv. It can be run again.
exec "$(dirname "$0")/../tools/setup.sh" build
