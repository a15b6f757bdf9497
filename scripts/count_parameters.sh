#!/usr/bin/env bash
# Parameters of the model of a recipe: scripts/count_parameters.sh RECIPE [--dictionary-size N]
# RECIPE is a name in configs/wmt14_en_de, or a file.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
recipe="${1:-}"
if [[ -z "$recipe" ]]; then
  printf 'count_parameters: error: RECIPE is missing: a name in configs/wmt14_en_de, or a file\n' >&2
  exit 1
fi
if [[ "$recipe" != -* && ! -f "$recipe" ]]; then recipe="$ROOT/configs/wmt14_en_de/$recipe.yaml"; fi
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.commands.count_parameters "$recipe" "${@:2}"
