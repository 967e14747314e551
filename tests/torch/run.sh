#!/bin/sh
# Train with the real PyTorch wheel on the simulated GPU: tests/torch/run.sh [arguments of train.py]
#
# The first run installs it and Triton into build/torch (1.04 GB to download, 2.5 GB on disk; no nvidia-* wheel is needed).
# GPUSIM_* variables of the caller (GPUSIM_TRACE, GPUSIM_CTL, GPUSIM_SCHED) take effect as usual.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
home=${INGERO_TORCH:-$root/build/torch}
python=${PYTHON:-$root/.venv/bin/python}

# Not by importing it: that needs the stubs.
if ! ls "$home"/venv/lib/python3*/site-packages/torch/lib/libtorch_cuda.so >/dev/null 2>&1 ||
	! ls -d "$home"/venv/lib/python3*/site-packages/triton >/dev/null 2>&1; then
	echo "installing torch 2.8.0 and triton 3.4.0 into $home/venv" >&2
	"$python" -m venv "$home/venv"
	# --no-deps: its other requirements are the nvidia-* wheels, which the stubs stand in for.
	"$home/venv/bin/python" -m pip install --quiet --no-deps torch==2.8.0 triton==3.4.0 filelock fsspec jinja2 \
		markupsafe networkx sympy mpmath setuptools typing_extensions numpy
fi

torch=$(dirname "$home"/venv/lib/python3*/site-packages/torch/lib/libtorch_cuda.so)
lib=$(PYTHONPATH="$root/src" "$python" -m ingero.demo.gpusim.torch_stubs "$torch" "$home/lib")

LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$home/venv/bin/python" -W ignore \
	"$root/tests/torch/train.py" "$@"
