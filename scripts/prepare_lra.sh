#!/usr/bin/env bash
# The data of one task of Long Range Arena, generated or from its published archive: scripts/prepare_lra.sh --help
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.lra.prepare "$@"
