#!/usr/bin/env bash
# Installs what building and testing need: distribution packages when root, the rest into .venv. Says what it does.
# Usage: tools/setup.sh [demo|system]     demo: what recording and explaining need, no page, no tests
#                                         system: the distribution packages of all but the tests only
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
PATH=$PATH:/usr/sbin:/sbin # Debian leaves them out for ordinary users

say() { printf 'setup: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
	say "Python 3.10 or newer is needed; $python is $("$python" -V 2>&1 || true). Name another: make PYTHON=python3.12 ..."
	exit 1
}

missing=()
has gcc && [ -e /usr/include/stdio.h ] || missing+=(gcc libc6-dev)
has g++ || missing+=(g++)
has clang || [ -n "${BPF_CLANG:-}" ] || missing+=(clang)
"$python" -c 'import ctypes; ctypes.CDLL("libbpf.so.1")' 2>/dev/null || missing+=(libbpf1)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
wanted=${1:-all}
if [ "$wanted" != demo ]; then
	has node || missing+=(nodejs) # with npm builds the dashboard's page; runs Perfetto's trace processor in the tests
	has npm || missing+=(npm)
fi
if [ "$wanted" = all ]; then # for the tests: network scenarios, a browser
	has ip || missing+=(iproute2)
	has iptables || missing+=(iptables)
	has systemd-analyze || missing+=(systemd) # judges the units
	has chromium || missing+=(chromium)
fi
if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" = 0 ] && has apt-get; then
		say "installing ${missing[*]}"
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	else
		say "not installed: ${missing[*]}"
		say "  root installs them: apt-get install ${missing[*]}; without clang the BPF compiler comes from PyPI (ziglang)"
	fi
fi
[ "$wanted" != system ] || exit 0

prometheus=build/prometheus # unpacked, because the installed package starts a server; the tests take the programs only
unpacking=
if [ "$wanted" = all ] && ! has promtool && [ ! -x $prometheus/usr/bin/promtool ] && has apt-get && has dpkg-deb; then
	say "unpacking prometheus into $prometheus, beside what follows"
	mkdir -p $prometheus
	(cd $prometheus && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) \
		>/dev/null 2>&1 &
	unpacking=$!
fi

stamp=.venv/.installed
version=$("$python" -V 2>&1)
is_current() { [ -e "$1" ] && [ ! pyproject.toml -nt "$1" ] && [ "$(<"$1")" = "$version" ]; }
make_venv() {
	say "installing Python packages into .venv ($version)"
	if [ -e .venv/bin/python ] && [ "$(.venv/bin/python -V 2>&1)" != "$version" ]; then
		"$python" -m venv --clear .venv
	else
		"$python" -m venv .venv
	fi
	.venv/bin/python -m pip install --quiet --upgrade pip
}
if [ "$wanted" = demo ]; then
	if ! is_current "$stamp" && ! is_current "$stamp-demo"; then
		make_venv
		.venv/bin/python -m pip install --quiet --editable .
		echo "$version" >"$stamp-demo"
	fi
elif ! is_current "$stamp"; then
	# the page and the BPF objects need nothing of it: made beside it here, what fails is made and said by `make build`
	{ "$python" tools/build_page.py && "$python" tools/build_bpf.py; } >/dev/null 2>&1 &
	building=$!
	make_venv
	.venv/bin/python -m pip install --quiet --editable . --group dev
	echo "$version" >"$stamp"
	wait "$building" || true
fi
if ! has clang && [ -z "${BPF_CLANG:-}" ] && ! .venv/bin/python -c 'import ziglang' 2>/dev/null; then
	say "installing the BPF compiler (ziglang) into .venv"
	.venv/bin/python -m pip install --quiet ziglang
fi
if [ -n "$unpacking" ]; then
	wait "$unpacking" || say "prometheus could not be had; tests that need it are skipped (apt-get update may help)"
fi
