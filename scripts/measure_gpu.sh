#!/usr/bin/env bash
# Tests and times the GPU kernels in less than ten minutes, and writes the results to gpu/gpu.md and gpu/gpu.json.
#
#   scripts/measure_gpu.sh [--wheels DIR] [options of python -m luna_fairseq.benchmark.gpu; see its --help]
#
# The script runs from a checkout, in the environment of PYTHON (default: python), which must have torch. --wheels installs the
# wheels in DIR (such as fairseq's, for whole models) into a temporary folder, so that the environment does not change.
set -euo pipefail

checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-$(command -v python || command -v python3)}"
path="$checkout"
if [[ "${1:-}" == --wheels ]]; then
  wheels="${2:?--wheels needs a folder}"
  shift 2
  site="$(mktemp -d)"
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl
  path="$checkout:$site"
fi
PYTHONUNBUFFERED=1 PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}" "$python" -m luna_fairseq.benchmark.gpu "$@"
