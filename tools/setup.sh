#!/usr/bin/env bash
# Installs what building and testing need: distribution packages when root, the rest into .venv. Says what it does.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

say() { printf 'setup: %s\n' "$*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
	say "Python 3.10 or newer is needed; $python is $("$python" -V 2>&1). Name another: make PYTHON=python3.12 ..."
	exit 1
}

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v g++ >/dev/null || missing+=(g++)
command -v clang >/dev/null || [ -n "${BPF_CLANG:-}" ] || missing+=(clang)
ldconfig -p | grep -q 'libbpf\.so\.1' || missing+=(libbpf1)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		say "installing ${missing[*]}"
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	else
		say "not installed, and this is not root: ${missing[*]} (the BPF compiler comes from PyPI instead)"
	fi
fi

stamp=.venv/.installed
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
	say "installing Python packages into .venv"
	"$python" -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	.venv/bin/python -m pip install --quiet --editable . --group dev
	command -v clang >/dev/null || [ -n "${BPF_CLANG:-}" ] || .venv/bin/python -m pip install --quiet ziglang
	touch "$stamp"
fi
