#!/usr/bin/env bash
# WMT'14 English-German, from the public archives to the folder that fairseq-train reads: scripts/prepare_wmt14_en_de.sh --help
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.translation.prepare_wmt14_en_de "$@"
