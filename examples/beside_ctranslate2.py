"""Compare the speed of beam search in this package with CTranslate2, on sentences as long as those of a text.

Models have base size and random weights. They translate in turns in one process with one thread. A batch
holds up to 16 lines of the same length. The length of a line is its number of words and punctuation marks,
plus one for the end symbol.

    pip install ctranslate2==4.8.5
    python examples/beside_ctranslate2.py --text test_2016_flickr.de
"""

import argparse
import random
import re
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path

import ctranslate2
import torch

from fairseq.models import ARCH_CONFIG_REGISTRY
from luna_fairseq.benchmark.__main__ import build_parser
from luna_fairseq.benchmark.decode import Decode
from luna_fairseq.benchmark.freed_memory import keep_freed_memory
from luna_fairseq.benchmark.task import BatchSize

OURS = ("transformer", "luna-16-tied", "peer-softmax-int8", "luna-16-int8")
THEIRS = ("float32", "int8")
BEAM, PARTS = 5, 8


def make_batches(lines, most):
    """Return the sizes of the batches for the lines of a text, in random order.

    Args:
        lines: lines of the text.
        most: maximum number of sentences in a batch.
    """
    lengths = Counter(len(re.findall(r"\w+|[^\w\s]", line)) + 1 for line in lines)
    batches = [
        BatchSize(min(most, number - i), length)
        for length, number in sorted(lengths.items())
        for i in range(0, number, most)
    ]
    return random.Random(1).sample(batches, len(batches))


def convert_transformer(task, longest, folder):
    """Convert fairseq's Transformer for CTranslate2 and return the folder of the converted model.

    Args:
        task: decoding benchmark that makes the model.
        longest: number of tokens of the longest sentence.
        folder: folder for the checkpoint and the converted model.
    """
    model = task.make_model(task.rows()["transformer"], longest).eval()
    for language in ("a", "b"):
        task.dictionary().save(str(folder / f"dict.{language}.txt"))
    options = Namespace(
        **task.common_options(longest, 0.1), arch="transformer", task="translation", data=str(folder)
    )
    options.source_lang, options.target_lang, options.criterion = "a", "b", "cross_entropy"
    ARCH_CONFIG_REGISTRY["transformer"](options)
    torch.save({"args": options, "model": model.state_dict()}, str(folder / "model.pt"))
    converter = ctranslate2.converters.FairseqConverter(str(folder / "model.pt"), str(folder))
    return converter.convert(str(folder / "converted"), force=True)


def search_by_ctranslate2(translator, batch):
    """Translate a batch of random sentences with CTranslate2."""
    draw = random.Random(batch.T)
    words = [[f"w{draw.randrange(31000)}" for _ in range(batch.T - 1)] for _ in range(batch.sentences)]
    length = {"max_decoding_length": batch.T, "min_decoding_length": batch.T}
    results = translator.translate_batch([[*line, "</s>"] for line in words], beam_size=BEAM, **length)
    if any(len(result.hypotheses[0]) != batch.T for result in results):
        sys.exit(f"CTranslate2 returned hypotheses whose length is not {batch.T}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--text", type=argparse.FileType(encoding="utf-8"), default=sys.stdin)
    parser.add_argument("--sentences", type=int, default=1000, help="maximum number of lines to read")
    parser.add_argument("--batch", type=int, default=16, help="maximum number of sentences in a batch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    batches = make_batches(args.text.read().splitlines()[: args.sentences], args.batch)
    longest = max(batch.T for batch in batches)
    task = Decode(build_parser().parse_args(["decode", "--beam", str(BEAM)]))
    rows = {}
    for name in OURS:
        model = task.ready_model(task.rows()[name], longest)
        rows[name] = lambda batch, model=model: task.search(model, batch)()
    with tempfile.TemporaryDirectory() as folder:
        path = convert_transformer(task, longest, Path(folder))
        for kind in THEIRS:
            options = {"compute_type": kind, "inter_threads": 1, "intra_threads": 1}
            translator = ctranslate2.Translator(path, device="cpu", **options)
            rows[f"CTranslate2 {kind}"] = partial(search_by_ctranslate2, translator)
    for search in rows.values():
        search(BatchSize(2, 9))
    seconds = Counter()
    for part in range(PARTS):
        for name, search in rows.items():
            begun = time.process_time()
            for batch in batches[part::PARTS]:
                search(batch)
            seconds[name] += time.process_time() - begun
        print(f"{part + 1} of {PARTS} parts", file=sys.stderr)
    sentences = sum(batch.sentences for batch in batches)
    tokens = sum(batch.sentences * batch.T for batch in batches)
    print(f"{sentences:,} sentences, {tokens:,} tokens, per second of CPU time:")
    for name, spent in seconds.items():
        print(f"{name:20} {sentences / spent:8.1f} sentences/s {tokens / spent:8.0f} tokens/s")


if __name__ == "__main__":
    main()
