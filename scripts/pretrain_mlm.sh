#!/usr/bin/env bash
# Pretrains a Luna masked language model with the settings of a preset. See --help.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'HELP'
usage: scripts/pretrain_mlm.sh --data DIR[:DIR...] --preset NAME --out DIR [--gpus N] [--batch-size N]
                               [-- fairseq-train options]

Started again with the same options it goes on where it stopped.

  --data DIR[:DIR...]   binarised text; several shards separated by colons, one for each epoch in turn
  --preset NAME         base_16gb, base_160gb or small: a file of options in configs/masked_lm
  --out DIR             checkpoints go there
  --gpus N              GPUs that train together, of all machines (default: those of this one, or one CPU)
  --batch-size N        sequences on each GPU at a time (default: 16); gradients are accumulated up to the preset's batch
  --                    what follows is handed to fairseq-train and overrides the preset: --bf16, --fp16,
                        --checkpoint-activations, --ddp-backend fully_sharded, ...
HELP
}

die() {
  printf 'pretrain_mlm: error: %s\n' "$*" >&2
  exit 1
}

data='' preset='' out='' gpus='' batch_size=16
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    --data | --preset | --out | --gpus | --batch-size)
      (($# > 1)) || die "$1 needs a value"
      name="${1#--}"
      printf -v "${name//-/_}" '%s' "$2"
      shift 2
      ;;
    *) die "unknown option $1: see --help (options of fairseq-train come after --)" ;;
  esac
done
for name in data preset out; do
  [[ -n "${!name}" ]] || die "--$name is missing: see --help"
done
options_file="$ROOT/configs/masked_lm/$preset.args"
[[ -f "$options_file" ]] || die "--preset $preset is unknown: $options_file does not exist"
[[ -n "$gpus" ]] || gpus="$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')"
for name in gpus batch_size; do
  [[ "${!name}" =~ ^[1-9][0-9]*$ ]] || die "--${name//_/-} ${!name} must be a whole number of at least 1"
done

total="$(sed -n 's/^# sequences per update: //p' "$options_file")"
at_a_time=$((gpus * batch_size))
((total % at_a_time == 0)) ||
  die "$gpus GPUs with --batch-size $batch_size do not divide the batch of $total sequences: choose another --batch-size"
mapfile -t options < <(sed 's/#.*//' "$options_file" | tr -s '[:space:]' '\n' | sed '/^$/d')

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
printf 'pretrain_mlm: %d GPU(s) x %d sequences x %d accumulated = %d sequences per update\n' \
  "$gpus" "$batch_size" $((total / at_a_time)) "$total"
exec python -m fairseq_cli.train "$data" --user-dir "$ROOT/luna_fairseq" --save-dir "$out" --seed 1 \
  --batch-size "$batch_size" --update-freq $((total / at_a_time)) "${options[@]}" "$@"
