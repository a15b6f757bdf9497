"""A small parallel corpus whose target is the reversed source, and the options of a training on it."""

import random

from commands import TINY, succeed

SENTENCES = {"train": 120, "valid": 16, "test": 12}
WORDS = [f"w{i}" for i in range(20)]

# The authors' command for WMT'14 with other widths, batch sizes and numbers of updates.
AUTHORS_COMMAND = f"""
    --seed 1 --ddp-backend c10d --find-unused-parameters
    --valid-subset valid -s src -t tgt
    --eval-bleu --eval-tokenized-bleu --eval-bleu-detok space
    -a luna_base_tied {TINY} --projection-length 16
    --encoder-projected-attention-heads 2 --decoder-projected-attention-heads 4
    --optimizer apollo --lr 0.1 --clip-norm 0.1 --clip-mode each
    --label-smoothing 0.1 --max-tokens 100 --max-sentences 1024 --share-all-embeddings
    --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1 --word-dropout 0.0
    --lr-scheduler milestone --lr-decay-rate 0.1 --milestones 300000 450000
    --weight-decay 1e-8 --weight-decay-type L2
    --criterion label_smoothed_cross_entropy
    --warmup-updates 1000 --warmup-init-lr 0.00001 --apollo-beta 0.9 --apollo-eps 1e-4
    --keep-last-epochs 5 --keep-interval-updates 1 --update-freq 1 --save-interval-updates 5000
    --log-format simple --log-interval 1 --num-workers 0
"""


def write_corpus(folder, sentences, seed=1, longest=6):
    generator = random.Random(seed)
    for split, number in sentences.items():
        sources = [generator.choices(WORDS, k=generator.randint(1, longest)) for _ in range(number)]
        for side, order in (("src", 1), ("tgt", -1)):
            text = "".join(" ".join(words[::order]) + "\n" for words in sources)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")


def preprocess(folder, *words):
    """Binarise the corpus in ``folder`` with a joint dictionary, and return the data folder."""
    prefixes = [word for split in SENTENCES for word in (f"--{split}pref", folder / split)]
    succeed("preprocess", "-s src -t tgt --joined-dictionary", *prefixes, "--destdir", folder / "bin", *words)
    return folder / "bin"
