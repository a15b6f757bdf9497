#!/usr/bin/env bash
# From raw text files to the data of masked (and causal) language models: luna-prepare-text, from a checkout.
#
#   scripts/prepare_mlm.sh --train FILE... --valid FILE... [--test FILE...] --vocab-size 32000 --destdir DIR
#   scripts/prepare_mlm.sh --train FILE... --valid FILE... --destdir DIR \
#       --gpt2-encoder-json encoder.json --gpt2-vocab-bpe vocab.bpe [--dict dict.txt] [--shards 10]
#
# --help explains the options.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec python -m luna_fairseq.masked_lm.prepare_text "$@"
