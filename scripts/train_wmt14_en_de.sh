#!/usr/bin/env bash
# Trains one row of the paper's Tables 4 and 5. See --help.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
RECIPES="$ROOT/configs/wmt14_en_de"

usage() {
  cat <<'HELP'
usage: scripts/train_wmt14_en_de.sh RECIPE DATA [fairseq-train options]

Trains with the settings of configs/wmt14_en_de/RECIPE.yaml on DATA (what scripts/prepare_wmt14_en_de.sh made), on all
GPUs of this machine (CUDA_VISIBLE_DEVICES chooses), with --update-freq such that the batch is that of 8 GPUs x 8,192
tokens, with --bf16 where the card has it and --fp16 on a V100. Checkpoints go to checkpoints/RECIPE (--save-dir).
Started again, it goes on from there. Options override the recipe's; --fp32 is understood too. Recipes:
HELP
  for file in "$RECIPES"/*.yaml; do printf '  %s\n' "$(basename "$file" .yaml)"; done
}

die() {
  printf 'train_wmt14_en_de: error: %s\n' "$*" >&2
  exit 1
}

case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  '' | -*) die "RECIPE is missing: see --help" ;;
esac
(($# > 1)) && [[ "$2" != -* ]] || die "DATA is missing: see --help"
[[ -d "$2" ]] || die "$2 is no folder: give what scripts/prepare_wmt14_en_de.sh made"
recipe="$RECIPES/$1.yaml" data="$2"
shift 2

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
words="$(python -m luna_fairseq.commands.recipes "$recipe" "$@")" || exit 1
mapfile -t options <<<"$words"
exec python -m fairseq_cli.train "$data" "${options[@]}"
