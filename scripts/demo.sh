#!/usr/bin/env bash
# The whole way in miniature: writes an English-German corpus from a small grammar, trains a small Luna on it with
# Apollo, translates sentences it has not seen, and scores them. A few minutes on two CPU cores.
#
#   scripts/demo.sh [DIR]   everything goes to DIR (default: demo in the current folder)
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="${1:-demo}"

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
python "$ROOT/examples/demo_corpus.py" --destdir "$out/corpus"
python -m luna_fairseq.translation.train_bitext -s en -t de --vocab-size 2000 --recipe demo --average 3 --destdir "$out" \
  --trainpref "$out/corpus/train" --validpref "$out/corpus/valid" --testpref "$out/corpus/test"
printf '\ndone in %d minutes %d seconds\n' $((SECONDS / 60)) $((SECONDS % 60))
