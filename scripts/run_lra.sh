#!/usr/bin/env bash
# Models on a task of Long Range Arena with five seeds, mean and spread as a table: scripts/run_lra.sh --help
#
#   scripts/run_lra.sh configs/lra/listops.args data/lra/listops --out runs/lra [--models luna-16 luna-16-p] [-- --fp16]
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.lra.seeds "$@"
