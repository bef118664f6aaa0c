#!/bin/sh
# The GPU benchmarks and checks, on a machine with a GPU:
#   benchmarks/gpu.sh [--json FILE]
# Checks first that packed attention on the GPU equals the reference, then measures, and then checks whole jobs.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD"
python3 -m benchmarks.gpu_checks
python3 -m benchmarks.gpu "$@"
python3 -m benchmarks.gpu_jobs
