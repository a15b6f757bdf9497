#!/usr/bin/env bash
# From parallel text (PREFIX.LANG, one sentence a line) to the folder that fairseq-train reads: scripts/prepare_bitext.sh --help
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.translation.prepare_bitext "$@"
