"""Compare the speed of beam search in this package with CTranslate2, on sentences as long as those of a text.

All models have base size and random weights, and translate random words. They take turns in one process with
one thread. A batch holds up to 16 sentences of equal length. The length of a sentence is the number of words
and punctuation marks in a line of the text, plus one for the end symbol. Single sentences of --line tokens
are measured too.

With --shortlist N, models are also measured with a vocabulary shortlist: N random candidates for each source
word, and 200 candidates for every sentence. Candidates of real words overlap, and random candidates do not.
So 10 random candidates lead to as many candidates in a batch as 50 real ones.

    pip install ctranslate2==4.8.5
    python examples/beside_ctranslate2.py --text test_2016_flickr.de
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import ctranslate2
import torch

from fairseq.models import ARCH_CONFIG_REGISTRY
from luna_fairseq.benchmark.__main__ import build_parser
from luna_fairseq.benchmark.decode import Decode
from luna_fairseq.benchmark.freed_memory import keep_freed_memory
from luna_fairseq.benchmark.task import BatchSize, Job
from luna_fairseq.commands.arguments import positive
from luna_fairseq.files.writing import write_text
from luna_fairseq.models.shortlist import Shortlist
from luna_fairseq.text.lexicon import EVERY_SENTENCE, Lexicon, write_lexicon

# Our models, and compute types of CTranslate2.
OURS = ("transformer", "luna-16-tied", "peer-softmax-int8", "luna-16-int8")
BF16 = "luna-16-bf16"  # needs a CPU that multiplies in bfloat16
THEIRS = ("float32", "int8")
BEAM = 5
PARTS = 8  # number of parts of the text, after each of which the next model takes its turn
WORDS = 31000  # size of the vocabulary
COMMON = 200  # candidates that a shortlist has for every sentence
Candidates = Dict[str, List[str]]


def make_batches(lines: Sequence[str], most: int) -> List[BatchSize]:
    """Return the sizes of the batches for the lines of a text, in random order.

    A batch contains lines of equal length.

    Args:
        lines: lines of the text.
        most: maximum number of lines in a batch.
    """
    lengths = Counter(len(re.findall(r"\w+|[^\w\s]", line)) + 1 for line in lines)
    batches = [
        BatchSize(min(most, number - i), length)
        for length, number in sorted(lengths.items())
        for i in range(0, number, most)
    ]
    return random.Random(1).sample(batches, len(batches))


def draw_candidates(number: int) -> Candidates:
    """Draw ``number`` random translation candidates for each source word of a shortlist.

    Returns:
        Candidates keyed by source word. The key ``EVERY_SENTENCE`` has the candidates for all sentences.
    """
    draw = random.Random(2)
    candidates = {EVERY_SENTENCE: [f"w{i}" for i in range(COMMON)]}
    for i in range(WORDS):
        candidates[f"w{i}"] = [f"w{draw.randrange(WORDS)}" for _ in range(number)]
    return candidates


def convert_transformer(task: Decode, longest: int, folder: Path, candidates: Optional[Candidates]) -> str:
    """Build fairseq's Transformer with random weights, and convert it to a CTranslate2 model.

    Args:
        task: decoding benchmark that builds the model.
        longest: number of tokens of the longest sentence.
        folder: folder for the checkpoint and the converted model.
        candidates: shortlist from :func:`draw_candidates`, or None for no shortlist.

    Returns:
        Path to the converted model.
    """
    model = task.make_model(task.variants()["transformer"], longest).eval()
    for language in ("a", "b"):
        task.dictionary().save(str(folder / f"dict.{language}.txt"))
    options = Namespace(
        **task.common_options(longest, 0.1), arch="transformer", task="translation", data=str(folder)
    )
    options.source_lang, options.target_lang, options.criterion = "a", "b", "cross_entropy"
    ARCH_CONFIG_REGISTRY["transformer"](options)
    torch.save({"args": options, "model": model.state_dict()}, str(folder / "model.pt"))
    converter = ctranslate2.converters.FairseqConverter(str(folder / "model.pt"), str(folder))
    vmap = None
    if candidates is not None:
        write_lexicon(folder / "shortlist", Lexicon(candidates))
        vmap = str(folder / "shortlist")
    return converter.convert(str(folder / "converted"), vmap=vmap, force=True)


def prepare_ctranslate2(translator: Any, batch: BatchSize, use_vmap: bool = False) -> Job:
    """Return a function that translates a batch of random sentences with CTranslate2.

    Args:
        translator: ``ctranslate2.Translator``.
        batch: size of the batch.
        use_vmap: use the shortlist of the converted model.
    """
    draw = random.Random(batch.T)
    words = [[f"w{draw.randrange(WORDS)}" for _ in range(batch.T - 1)] for _ in range(batch.sentences)]
    lines = [[*line, "</s>"] for line in words]
    options = {"max_decoding_length": batch.T, "min_decoding_length": batch.T, "use_vmap": use_vmap}

    def search() -> None:
        results = translator.translate_batch(lines, beam_size=BEAM, **options)
        if any(len(result.hypotheses[0]) != batch.T for result in results):
            sys.exit(f"CTranslate2 returned hypotheses whose length is not {batch.T}")

    return search


def build_searches(
    task: Decode, longest: int, names: Sequence[str], number: Optional[int], folder: Path
) -> Dict[str, Callable[[BatchSize], Job]]:
    """Build a function for each model that prepares the search for a random batch of a given size.

    Args:
        task: decoding benchmark that builds our models.
        longest: number of tokens of the longest sentence.
        names: names of our models.
        number: number of candidates for each source word in the shortlist, or None for no shortlist.
        folder: folder for the converted model.

    Returns:
        The functions, keyed by model name, in the order of the output.
    """
    candidates = None if number is None else draw_candidates(number)
    searches: Dict[str, Callable[[BatchSize], Job]] = {}

    def prepare(model: Any, shortlist: Optional[Shortlist], batch: BatchSize) -> Job:
        model.shortlist = shortlist
        return task.prepare_search(model, batch)

    for name in names:
        model = task.prepare_model(task.variants()[name], longest)
        searches[name] = partial(prepare, model, None)
        if candidates is not None and name != "transformer":
            shortlist = Shortlist(candidates, task.dictionary(), task.dictionary())
            searches[f"{name} + shortlist"] = partial(prepare, model, shortlist)
    path = convert_transformer(task, longest, folder, candidates)
    for kind in THEIRS:
        options = {"compute_type": kind, "inter_threads": 1, "intra_threads": 1}
        translator = ctranslate2.Translator(path, device="cpu", **options)
        name = f"CTranslate2 {kind}"
        searches[name] = partial(prepare_ctranslate2, translator)
        if candidates is not None:
            searches[f"{name} + shortlist"] = partial(prepare_ctranslate2, translator, use_vmap=True)
    return searches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    text = argparse.FileType(encoding="utf-8")
    parser.add_argument("--text", type=text, default=sys.stdin, metavar="FILE", help="text (default: stdin)")
    count = {"type": positive, "metavar": "N"}
    parser.add_argument("--sentences", default=1000, help="lines to read at most (default: 1000)", **count)
    parser.add_argument("--batch", default=16, help="lines in a batch at most (default: 16)", **count)
    parser.add_argument("--line", default=30, help="tokens of a single line (default: 30)", **count)
    ours = f"our models (default: {' '.join(OURS)})"
    parser.add_argument("--models", nargs="*", choices=(*OURS, BF16), default=OURS, help=ours)
    parser.add_argument("--shortlist", help="candidates of a word (default: no shortlist)", **count)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    lines = args.text.read().splitlines()[: args.sentences]
    if not lines:
        parser.error("the text has no lines")
    work = {
        f"one line of {args.line}": [BatchSize(1, args.line)] * PARTS,
        "sentences": make_batches(lines, args.batch),
    }
    longest = max(batch.T for batches in work.values() for batch in batches)
    task = Decode(build_parser().parse_args(["decode", "--beam", str(BEAM)]))
    with tempfile.TemporaryDirectory() as folder:
        searches = build_searches(task, longest, args.models, args.shortlist, Path(folder))
        for prepare in searches.values():
            prepare(BatchSize(2, 9))()
        seconds = {name: Counter() for name in work}
        for part in range(PARTS):
            for name, prepare in searches.items():
                for case, batches in work.items():
                    jobs = [prepare(batch) for batch in batches[part::PARTS]]
                    begun = time.process_time()
                    for job in jobs:
                        job()
                    seconds[case][name] += time.process_time() - begun
            print(f"{part + 1} of {PARTS} parts", file=sys.stderr)
    tokens = {case: sum(x.sentences * x.T for x in batches) for case, batches in work.items()}
    found = {name: {case: tokens[case] / seconds[case][name] for case in work} for name in searches}
    title = "tokens per second of CPU time"
    print(f"{title:40}" + "".join(f"{case:>20}" for case in work))
    for name, rates in found.items():
        print(f"{name:40}" + "".join(f"{rate:20.0f}" for rate in rates.values()))
    print(f"{len(lines):,} lines, {tokens['sentences']:,} tokens, batches of up to {args.batch}")
    if args.json is not None:
        write_text(args.json, json.dumps({"tokens per second": found, "tokens": tokens}, indent=1) + "\n")


if __name__ == "__main__":
    main()
