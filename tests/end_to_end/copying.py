"""A small monolingual corpus with labels, for language models and classifiers."""

import random

from fairseq import options
from fairseq_cli import preprocess as fairseq_preprocess

WORDS = [f"w{i}" for i in range(20)]
SENTENCES = {"train": 120, "valid": 16, "test": 12}
MODEL = (
    "--encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 48 --encoder-attention-heads 4"
    " --projection-length 8 --max-positions 64"
)
ADAM = (
    "--optimizer adam --adam-betas (0.9,0.98) --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0 --lr 0.003"
)
ADAM += " --log-format simple --log-interval 1 --num-workers 0 --seed 1 --required-batch-size-multiple 1"
PRETRAIN = (
    f"--task masked_lm --criterion masked_lm -a luna_bert {MODEL} "
    f"{ADAM} --tokens-per-sample 64 --batch-size 8"
)


def sentences(number, seed):
    """Yield sentences as lists of words, in which each word determines the next one for a given step."""
    generator = random.Random(seed)
    for _ in range(number):
        first, step = generator.randrange(20), generator.choice((1, 3))
        yield [WORDS[(first + step * i) % 20] for i in range(generator.randint(3, 8))]


def write_text(folder):
    """Write the files train, valid and test with one sentence per line."""
    for seed, (split, number) in enumerate(SENTENCES.items()):
        text = "".join(" ".join(words) + "\n" for words in sentences(number, seed))
        (folder / split).write_text(text, encoding="utf-8")


def write_labelled(folder):
    """Write sentences to ``<split>.input0``, and the step between their words to ``<split>.label``."""
    for seed, (split, number) in enumerate(SENTENCES.items()):
        lines = list(sentences(number, seed + 10))
        labels = ["near" if WORDS.index(b) - WORDS.index(a) in (1, -19) else "far" for a, b, *_ in lines]
        (folder / f"{split}.input0").write_text("".join(" ".join(w) + "\n" for w in lines), encoding="utf-8")
        (folder / f"{split}.label").write_text("".join(label + "\n" for label in labels), encoding="utf-8")


def preprocess(folder, destination, suffix="", *words):
    """Binarise the files ``<split><suffix>`` within this process, and return ``destination``."""
    line = ["--only-source", "--workers", "1", "--destdir", str(destination), *map(str, words)]
    for split in SENTENCES:
        line += [f"--{split}pref", str(folder / f"{split}{suffix}")]
    fairseq_preprocess.main(options.get_preprocessing_parser().parse_args(line))
    return destination
