#!/usr/bin/env bash
# Reproduces one result of the paper's Tables 4 and 5 in four steps. See --help.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'HELP'
usage: scripts/wmt14_en_de.sh prepare  DIR        [luna-prepare-wmt14-en-de options]
       scripts/wmt14_en_de.sh train    DIR RECIPE [fairseq-train options]
       scripts/wmt14_en_de.sh average  DIR RECIPE [N] [luna-average-checkpoints options]
       scripts/wmt14_en_de.sh evaluate DIR RECIPE [luna-evaluate options] [-- fairseq-generate options]

Reproduce one result of the paper's Tables 4 and 5: WMT'14 English-German, from the public archives to a score. RECIPE is the
last part of a name that luna-recipes lists under wmt14_en_de. If you start a step again, it continues where it stopped.

  prepare    download the archives and encode the text (Moses tokens, 40,000 merges, at most 250 pieces a side, in a ratio
             of at most 1.5)
  train      train the recipe; the checkpoints are in DIR/checkpoints/RECIPE
  average    average the last N epochs (default: 10, as in the paper) to averaged.pt in the same folder
  evaluate   translate newstest2014 with beam 5 and score it; the results are in DIR/results/RECIPE

example:
  scripts/wmt14_en_de.sh train wmt14 luna_16_softplus_tied --max-update 100000
HELP
}

die() {
  printf 'wmt14_en_de: error: %s\n' "$*" >&2
  exit 1
}

case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  prepare | train | average | evaluate) step="$1" ;;
  *) die "expected prepare, train, average or evaluate, got '${1:-}'. See --help" ;;
esac
dir="${2:-}"
[[ -n "$dir" && "$dir" != -* ]] || die "DIR is missing: see --help"
recipe="${3:-}"
[[ "$step" == prepare ]] || [[ -n "$recipe" && "$recipe" != -* ]] || die "RECIPE is missing: see --help"

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
data="$dir/moses" checkpoints="$dir/checkpoints/$recipe" results="$dir/results/$recipe"
case "$step" in
  prepare)
    exec python -m luna_fairseq.translation.prepare_wmt14_en_de --destdir "$dir" --subword moses --max-length 250 \
      --max-ratio 1.5 "${@:3}"
    ;;
  train)
    exec python -m luna_fairseq.commands.train "wmt14_en_de/$recipe" "$data" --save-dir "$checkpoints" "${@:4}"
    ;;
  average)
    if [[ "${4:-}" == -* ]]; then set -- "${@:1:3}" 10 "${@:4}"; fi
    exec python -m luna_fairseq.commands.average_checkpoints --inputs "$checkpoints" \
      --num-epoch-checkpoints "${4:-10}" --output "$checkpoints/averaged.pt" "${@:5}"
    ;;
  evaluate)
    exec python -m luna_fairseq.translation.evaluate "$data" --path "$checkpoints/averaged.pt" --results "$results" \
      --test-set wmt14/full "${@:4}"
    ;;
esac
