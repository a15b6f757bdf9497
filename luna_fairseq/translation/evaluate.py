"""``luna-evaluate``: a checkpoint's scores on the test text of a prepared folder.

Translates with beam search, puts the hypotheses into plain text and scores them with luna-score. With
--tune-lenpen the length penalty is chosen first, by BLEU on the validation text. DATA is what
luna-prepare-bitext or luna-prepare-wmt14-en-de made, with either encoding. DIR then holds hypotheses.LANG,
scores.json, and what fairseq-generate printed. Started again with the same checkpoint, it does only what is
left. Options after -- go to fairseq-generate (as -- --fp16). A translation has at most 1.5 times the tokens
of its source and 20 more, unless --max-len-a, --max-len-b or --min-len is among these.
"""

from __future__ import annotations

import argparse
import sys
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils
from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.checkpoint import option_of
from luna_fairseq.commands.logged import fairseq, run_logged
from luna_fairseq.commands.reporting import USER_DIR, console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files, digest, stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import options_of
from luna_fairseq.files.writing import replacing
from luna_fairseq.models.ema import write_ema
from luna_fairseq.progress import counter
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.documents import read_pieces
from luna_fairseq.text.output_length import limits_by_source
from luna_fairseq.text.subword import ROUTES
from luna_fairseq.translation.document_output import misdivided, sizes, write_sentences, write_singly
from luna_fairseq.translation.generated import Generated, lines_by_kind
from luna_fairseq.translation.score import add_shown, score
from luna_fairseq.translation.score import build_parser as build_score_parser
from luna_fairseq.translation.scores import TEST_SETS, Translations, check_reference, plain_scores

PROGRAM = "luna-evaluate"
_OWN = (
    *("--path", "--gen-subset", "--results-path", "--source-lang", "-s", "--target-lang", "-t", "--beam"),
    *("--nbest", "--lenpen", "--quiet"),
)
LENGTH_PENALTIES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)


def build_parser() -> CommandParser:
    """The command's options."""
    usage = "%(prog)s DATA --path CHECKPOINT --results DIR [options] [-- fairseq-generate options]"
    parser = CommandParser(PROGRAM, __doc__, usage=usage)
    parser.path("data", "folder of the prepared text", "DATA")
    parser.path("--path", "checkpoint to evaluate", "CHECKPOINT", required=True)
    parser.path("--results", "folder to write to", "DIR", required=True)
    parser.count("--beam", 5, "beam size")
    penalty = parser.add_mutually_exclusive_group()
    shown = "length penalty (default: %(default)s, fairseq's)"
    penalty.add_argument("--lenpen", type=Number(float, least=0), default=1.0, metavar="X", help=shown)
    values = " ".join(map(str, LENGTH_PENALTIES))
    tuned = f"choose the length penalty on the validation text, from these values (default: {values})"
    penalty.add_argument("--tune-lenpen", type=Number(float, least=0), nargs="*", metavar="X", help=tuned)
    parser.count("--max-tokens", 4096, "source tokens in a batch")
    int8 = "weights in 8 bits, on a CPU: faster, BLEU hardly changes"
    parser.add_argument("--int8", action="store_true", help=int8)
    parser.ema()
    add_shown(parser)
    return parser


class Evaluation:
    """One run of the command, ``extra`` being options for fairseq-generate. Raises InputError where DATA or
    the checkpoint is not what it should be."""

    def __init__(self, args: argparse.Namespace, extra: Sequence[str]) -> None:
        self.args = args
        self.extra = list(extra)
        if not args.path.is_file():
            raise InputError(f"--path {args.path} does not exist")
        routes = [route for route in ROUTES.values() if (args.data / route.model_file).is_file()]
        if not routes:
            names = " nor ".join(route.model_file for route in ROUTES.values())
            raise InputError(f"{args.data} holds neither {names}: give what luna-prepare-bitext made")
        self.route = routes[0]
        self.detokenizer = "moses" if self.route.name == "moses" else None
        first = args.data / "shard0"  # with --shards, that of the text that is no training text
        self.folder = first if any(first.glob("*.idx")) else args.data
        pairs = {path.name.split(".")[1] for path in self.folder.glob("train.*-*.*.idx")}
        if len(pairs) != 1:
            raise InputError(
                f"{self.folder} holds {len(pairs)} pairs of languages: give what luna-prepare-bitext made"
            )
        self.languages = pairs.pop().split("-")
        self.steps = FinishedSteps(args.results, "evaluate.json", ["scores.json"])

    def run(self) -> None:
        """Tune if so asked, translate the test text, print and write its scores."""
        if self.args.ema:
            self._write_ema()
        references = list(read_lines(self._plain("test")))
        if self.args.test_set in TEST_SETS:  # before hours of translating, not after
            check_reference(TEST_SETS[self.args.test_set], references)
        penalty = self.args.lenpen if self.args.tune_lenpen is None else self._tuned()
        generated = self._generate("test", penalty)
        print(f"test: beam {self.args.beam}, length penalty {penalty:g}")
        asked = build_score_parser().parse_args([str(generated), "--reference", str(self._plain("test"))])
        asked.target_lang, asked.detokenize, asked.split_compounds = self.languages[1], self.detokenizer, True
        asked.documents = self._pieces("test") if self._pieces("test").is_file() else None
        asked.output = self.args.results / f"hypotheses.{self.languages[1]}"
        asked.scores = self.args.results / "scores.json"
        asked.test_set, asked.samples = self.args.test_set, self.args.samples
        score(asked)

    def _write_ema(self) -> None:
        """Write the averaged weights to DIR/ema.pt, which is then evaluated."""
        averaged = self.args.results / "ema.pt"

        def write() -> Tuple[List[str], Dict[str, Any]]:
            write_ema(self.args.path, averaged)
            return [averaged.name], {}

        self.steps.do("ema", digest(stamps([self.args.path])), write, says=False)
        self.args.path = averaged

    def _tuned(self) -> float:
        """The length penalty of the best BLEU on the validation text; the first of equals."""
        references = list(read_lines(self._plain("valid")))
        scores: Dict[float, float] = {}
        print("length penalty   BLEU on the validation text")
        for penalty in self.args.tune_lenpen or LENGTH_PENALTIES:
            hypotheses = Generated(self._generate("valid", penalty)).hypotheses(references)
            text = Translations.read(hypotheses, references, self.detokenizer, self.languages[1])
            scores[penalty] = plain_scores(text, "13a")[0].value
            print(f"{penalty:14g}   {scores[penalty]:.2f}", flush=True)
        return max(scores, key=lambda penalty: scores[penalty])

    def _generate(self, subset: str, penalty: float) -> Path:
        """fairseq-generate's output, from this run or an earlier one; of pieces of documents, their
        sentences."""
        name, path = f"generate-{subset}-lenpen{penalty:g}.txt", self._pieces(subset)
        if not path.is_file():
            return self._generate_from(self.folder, subset, penalty, name)
        check_files(path)
        pieces = read_pieces(path)
        found = self._generate_from(self.folder, subset, penalty, f"pieces-{name}")
        other, text = misdivided(found, pieces), []  # type: List[int], List[str]
        if other:
            folder = self.args.results / f"{subset}-singly"
            write_singly(self.folder, subset, self.languages, other, folder)
            singly = lines_by_kind(self._generate_from(folder, subset, penalty, f"singly-{name}"))["H"]
            text = [line for _, line in sorted(singly.items())]
        sentences = sum(piece.sentences for piece in pieces)
        again = sum(pieces[number].sentences for number in other)
        print(
            f"{subset}: {sentences:,} sentences in {len(pieces):,} pieces; {len(other):,} pieces had another "
            f"number of sentences, whose {again:,} were translated again one by one"
        )
        write_sentences(found, pieces, text, self.args.results / name)
        return self.args.results / name

    def _generate_from(self, data: Path, subset: str, penalty: float, name: str) -> Path:
        self._check_lengths(data, subset)
        options = self._generate_options(data, subset, penalty)
        read = [*data.glob(f"{subset}.*"), *data.glob("dict.*.txt")]
        files = [self.args.path, *sorted(read)]

        def generate() -> Tuple[List[str], Dict[str, Any]]:
            log = self.args.results / "generate.log"
            sentences = len(sizes(data, subset, self.languages, self.languages[0]))
            bar = counter(f"translate {subset}", sentences, "sentences")
            with bar, replacing(self.args.results / name) as output:
                command = fairseq("generate", options)
                run_logged(command, log, (), output, True, lambda line: bar.update(line.startswith("S-")))
            return [name], {}

        self.steps.do(name, digest(options, stamps(files)), generate, says=False)
        return self.args.results / name

    def _check_lengths(self, data: Path, subset: str) -> None:
        positions = {**_positions(self.args.path), **options_of(self.extra)}
        for language, name in zip(self.languages, ("--max-source-positions", "--max-target-positions")):
            longest = int(sizes(data, subset, self.languages, language).max(initial=0))
            if name in positions and longest > int(positions[name]):
                raise InputError(
                    f"{subset}.{language} of {data} has a line of {longest:,} tokens with its end, and the "
                    f"model reads {positions[name]}: split it (a piece of a document: prepare with a smaller "
                    f"--documents), or train with {name} {longest}"
                )

    def _generate_options(self, data: Path, subset: str, penalty: float) -> List[str]:
        source, target = self.languages
        given = {name[2:].replace("-", "_"): value for name, value in options_of(self.extra).items()}
        limits = limits_by_source(given).items()
        length = [word for name, x in limits for word in (f"--{name.replace('_', '-')}", str(x))]
        return [
            *[str(data), "--user-dir", USER_DIR, "--path", str(self.args.path)],
            *["--source-lang", source, "--target-lang", target, "--gen-subset", subset],
            *["--beam", str(self.args.beam), "--lenpen", str(penalty), "--remove-bpe", self.route.remove_bpe],
            # Without a batch size multiple of 1 fairseq leaves out the sentences of an incomplete last batch.
            *["--max-tokens", str(self.args.max_tokens), "--required-batch-size-multiple", "1"],
            *(["--int8"] if self.args.int8 else []),
            *[*length, "--log-format", "none", *chain(*_positions(self.args.path).items()), *self.extra],
        ]

    def _pieces(self, subset: str) -> Path:
        return self.args.data / "plain" / f"{subset}.pieces"

    def _plain(self, subset: str) -> Path:
        path = self.args.data / "plain" / f"{subset}.{self.languages[1]}"
        if not path.is_file():
            raise InputError(f"{path} does not exist: prepare {self.args.data} again, with {subset} text")
        check_files(path)
        return path


@lru_cache(maxsize=None)
def _positions(checkpoint: Path) -> Dict[str, str]:
    """How long a sentence the model reads, as options: fairseq's task has a default of its own."""
    model = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"]
    found = {
        f"--max-{side}-positions": option_of(model, f"max_{side}_positions") for side in ("source", "target")
    }
    return {option: str(value) for option, value in found.items() if value}


main = console_script(
    PROGRAM, build_parser, lambda args, extra: Evaluation(args, extra).run(), place="results", passes_on=_OWN
)


if __name__ == "__main__":
    sys.exit(main())
