#!/usr/bin/env bash
# The whole way in miniature: writes an English-German corpus from a small grammar, trains a small Luna on it with
# Apollo, translates sentences it has not seen, and scores them; then a page that shows the run, and one that shows what
# the model attends to. A few minutes on two CPU cores.
#
#   scripts/demo.sh [DIR]   everything goes to DIR (default: demo in the current folder)
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="${1:-demo}"

# A thread that has nothing to do sleeps: beside other processes, spinning ones would make this many times slower.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
python "$ROOT/examples/demo_corpus.py" --destdir "$out/corpus"
python -m luna_fairseq.translation.train_bitext -s en -t de --vocab-size 2000 --recipe demo --average 3 --destdir "$out" \
  --trainpref "$out/corpus/train" --validpref "$out/corpus/valid" --testpref "$out/corpus/test"
python -m luna_fairseq.report.training "$out" --title "The demo's run" --out "$out/report.html" --quiet
python -m luna_fairseq.report.show "$out/checkpoints/averaged.pt" --text "$(head -n 1 "$out/corpus/test.en")" \
  --out "$out/attention.html" --quiet
printf '\nto look at, in a browser: %s and %s\n' "$out/report.html" "$out/attention.html"
printf 'done in %d minutes %d seconds\n' $((SECONDS / 60)) $((SECONDS % 60))
