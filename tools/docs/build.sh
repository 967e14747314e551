#!/usr/bin/env bash
# Builds the site: tools/docs/build.sh [PYTHON]. What it needs goes into build/docs-venv, once; the build itself asks no
# other host, and ends with an error where a link, an anchor or a page of the navigation leads nowhere.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
venv=build/docs-venv
wanted=tools/docs/requirements.txt
if ! cmp -s "$wanted" "$venv/installed.txt"; then
	echo "docs: installing $(grep -c == "$wanted") packages into $venv" >&2
	"$python" -m venv --clear "$venv"
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
	cp "$wanted" "$venv/installed.txt"
fi
# not --quiet: warnings that are not logged are not counted by --strict, and it would build whatever is broken
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict 2>&1 | sed '/^INFO/d' >&2
echo "build/site/index.html: $(find build/site -name '*.html' | wc -l) pages" >&2
