#!/usr/bin/env bash
# Fine-tunes a pretrained masked language model on a task, with the paper's sweep: luna-finetune, from a checkout.
#
#   scripts/finetune.sh SST-2 DATA --pretrained CHECKPOINT --out DIR
#
# DATA is what scripts/prepare_task.sh made. --help explains the options.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.masked_lm.finetune "$@"
