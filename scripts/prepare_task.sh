#!/usr/bin/env bash
# From a task's published files to the data for fine-tuning: luna-prepare-task, from a checkout.
#
#   scripts/prepare_task.sh SST-2 glue/SST-2 --vocabulary data-bin/text --destdir data-bin/sst2
#
# --help explains the options.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.masked_lm.prepare_task "$@"
