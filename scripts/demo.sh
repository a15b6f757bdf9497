#!/usr/bin/env bash
# Trains and scores a small translation model in a few minutes on two CPU cores.
#
# The script writes an English-German corpus from a small grammar, trains a small Luna on it with Apollo, translates
# sentences that the model has not seen, and scores them. It then writes a report of the run and a page of attention maps.
#
#   scripts/demo.sh [DIR]   write everything to DIR (default: demo in the current folder)
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="${1:-demo}"
if (($# > 1)) || [[ "$out" == -* ]]; then
  printf 'demo: error: expected at most a folder, got %s. Run scripts/demo.sh [DIR].\n' "$*" >&2
  exit 1
fi

# Idle threads sleep. Spinning threads would make the demo many times slower beside other processes.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
python "$ROOT/examples/demo_corpus.py" --destdir "$out/corpus"
python -m luna_fairseq.translation.train_bitext -s en -t de --vocab-size 2000 --recipe demo --average 3 --destdir "$out" \
  --trainpref "$out/corpus/train" --validpref "$out/corpus/valid" --testpref "$out/corpus/test"
python -m luna_fairseq.report.training "$out" --title "The demo's run" --out "$out/report.html" --quiet
python -m luna_fairseq.report.show "$out/checkpoints/averaged.pt" --text "$(head -n 1 "$out/corpus/test.en")" \
  --out "$out/attention.html" --quiet
printf '\nopen in a browser: %s and %s\n' "$out/report.html" "$out/attention.html"
printf 'done in %d minutes %d seconds\n' $((SECONDS / 60)) $((SECONDS % 60))
