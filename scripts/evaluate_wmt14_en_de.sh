#!/usr/bin/env bash
# Scores of a checkpoint on newstest2014, beam 5. For other text, add --test-set none. All options: --help
#
#   scripts/evaluate_wmt14_en_de.sh DATA --path CHECKPOINT --results DIR [--tune-lenpen] [-- fairseq-generate options]
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.translation.evaluate --test-set wmt14/full "$@"
