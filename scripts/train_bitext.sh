#!/usr/bin/env bash
# From parallel text to a scored translation model. See --help.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'HELP'
usage: scripts/train_bitext.sh --trainpref PREFIX --validpref PREFIX --testpref PREFIX --source LANG --target LANG
                               --vocab-size N --preset NAME --out DIR [--average N] [-- fairseq-train options]

Trains Luna with Apollo on any parallel text (files PREFIX.LANG, one sentence a line): prepares the text, trains,
averages the last checkpoints, translates the test text and scores the translation. Started again with the same
options it goes on where it stopped. A GPU is used where there is one.

  --trainpref, --validpref, --testpref PREFIX   plain text, as PREFIX.SOURCE and PREFIX.TARGET
  --source, --target LANG                       languages, the suffixes of the files
  --vocab-size N                                pieces of the joint byte-pair encoding
  --preset NAME                                 demo, small or base: a file of options in configs/bitext
  --out DIR                                     where everything goes: data/, checkpoints/, train.log, generate.txt,
                                                hypotheses.TARGET
  --average N                                   epochs to average at the end (default: 5)
  --                                            what follows is handed to fairseq-train and overrides the preset
HELP
}

die() {
  printf 'train_bitext: error: %s\n' "$*" >&2
  exit 1
}

say() { printf '\n== %s\n' "$*"; }

average=5
trainpref='' validpref='' testpref='' source='' target='' vocab_size='' preset='' out=''
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    --trainpref | --validpref | --testpref | --source | --target | --vocab-size | --preset | --out | --average)
      (($# > 1)) || die "$1 needs a value"
      name="${1#--}"
      printf -v "${name//-/_}" '%s' "$2"
      shift 2
      ;;
    *) die "unknown option $1: see --help (options of fairseq-train come after --)" ;;
  esac
done
for name in trainpref validpref testpref source target vocab_size preset out; do
  [[ -n "${!name}" ]] || die "--${name//_/-} is missing: see --help"
done
options_file="$ROOT/configs/bitext/$preset.args"
[[ -f "$options_file" ]] || die "--preset $preset is unknown: $options_file does not exist"
mapfile -t options < <(sed 's/#.*//' "$options_file" | tr -s '[:space:]' '\n' | sed '/^$/d')

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
data="$out/data" checkpoints="$out/checkpoints" log="$out/train.log" model=sentencepiece.bpe.model
mkdir -p "$checkpoints"

say "prepare: $data"
python -m luna_fairseq.translation.prepare_bitext --source-lang "$source" --target-lang "$target" --vocab-size "$vocab_size" \
  --trainpref "$trainpref" --validpref "$validpref" --testpref "$testpref" --destdir "$data"

# Checkpoints are numbers for the pieces of one encoding, and mean nothing with those of another.
if [[ ! -f "$checkpoints/checkpoint_last.pt" ]]; then
  cp "$data/$model" "$checkpoints/$model"
elif ! cmp -s "$data/$model" "$checkpoints/$model"; then
  die "$checkpoints holds a model of other text or another --vocab-size: give another --out, or remove it"
fi

say "train: $checkpoints (everything fairseq-train says: $log)"
python -m fairseq_cli.train "$data" --user-dir "$ROOT/luna_fairseq" --save-dir "$checkpoints" --seed 1 \
  --source-lang "$source" --target-lang "$target" --keep-last-epochs "$average" --required-batch-size-multiple 1 \
  --log-format simple --log-interval 100 "${options[@]}" "$@" 2>&1 |
  tee -a "$log" | awk '/\| (train|train_inner|valid) \|/ { print; fflush() }' ||
  { tail -n 20 "$log" >&2 && die "fairseq-train failed: the lines above are the end of $log"; }

say "average: $checkpoints/averaged.pt"
python -m luna_fairseq.commands.average_checkpoints --inputs "$checkpoints" --num-epoch-checkpoints "$average" \
  --output "$checkpoints/averaged.pt"

# Without a batch size multiple of 1 fairseq leaves out the sentences of an incomplete last batch.
say "translate: $out/generate.txt"
python -m fairseq_cli.generate "$data" --user-dir "$ROOT/luna_fairseq" --path "$checkpoints/averaged.pt" \
  --source-lang "$source" --target-lang "$target" --gen-subset test --beam 5 --remove-bpe sentencepiece \
  --max-tokens 4096 --required-batch-size-multiple 1 --log-format none >"$out/generate.txt.tmp" 2>"$out/generate.log" ||
  { tail -n 20 "$out/generate.log" >&2 && die "fairseq-generate failed: the lines above are the end of $out/generate.log"; }
mv "$out/generate.txt.tmp" "$out/generate.txt"

say "score"
python -m luna_fairseq.translation.score "$out/generate.txt" --reference "$testpref.$target" --source "$testpref.$source" \
  --samples 10 --output "$out/hypotheses.$target"
