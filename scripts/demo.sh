#!/usr/bin/env bash
# The whole way in miniature: writes an English-German corpus from a small grammar, trains a small Luna on it with
# Apollo, translates sentences it has not seen, and scores them. A few minutes on two CPU cores.
#
#   scripts/demo.sh [DIR]   everything goes to DIR (default: demo in the current folder)
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="${1:-demo}"

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
python examples/demo_corpus.py --destdir "$out/corpus"
"$ROOT/scripts/train_bitext.sh" --source en --target de --vocab-size 2000 --preset demo --average 3 --out "$out" \
  --trainpref "$out/corpus/train" --validpref "$out/corpus/valid" --testpref "$out/corpus/test"
printf '\ndone in %d minutes %d seconds\n' $((SECONDS / 60)) $((SECONDS % 60))
