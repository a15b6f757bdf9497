#!/usr/bin/env bash
# Tries and times the GPU kernels in under ten minutes: gpu/gpu.md and gpu/gpu.json, written as rows come.
#   scripts/measure_gpu.sh [--wheels DIR] [options of python -m luna_fairseq.benchmark.gpu; see its --help]
# It runs from a checkout, in the environment of PYTHON (python by default), which needs torch. Wheels of what is missing there,
# as fairseq's for the whole models, are put into a folder of their own and leave the environment as it is.
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
