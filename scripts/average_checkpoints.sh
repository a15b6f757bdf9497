#!/usr/bin/env bash
# The mean of the last epochs' checkpoints, ten as in the paper, as SAVE_DIR/averaged.pt:
#
#   scripts/average_checkpoints.sh SAVE_DIR [N]
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ $# -lt 1 || $# -gt 2 || "$1" == -* ]]; then
  printf 'average_checkpoints: error: usage: scripts/average_checkpoints.sh SAVE_DIR [N]\n' >&2
  exit 1
fi
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.commands.average_checkpoints --inputs "$1" --num-epoch-checkpoints "${2:-10}" \
  --output "$1/averaged.pt"
