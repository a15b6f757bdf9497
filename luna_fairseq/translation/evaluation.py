"""Evaluation of a translation checkpoint: translate, restore plain text and score (``luna-evaluate``)."""

from __future__ import annotations

import argparse
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils
from luna_fairseq.commands.checkpoint import option_of
from luna_fairseq.commands.logged import fairseq, run_logged
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files, digest, file_stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.files.writing import replacing
from luna_fairseq.models.ema import write_ema
from luna_fairseq.progress import counter
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.documents import read_pieces
from luna_fairseq.text.output_length import limits_by_source
from luna_fairseq.text.subword import ROUTES
from luna_fairseq.translation.document_output import (
    find_misdivided,
    read_sizes,
    write_sentences,
    write_single_sentences,
)
from luna_fairseq.translation.evaluate import LENGTH_PENALTIES
from luna_fairseq.translation.generated import Generated, lines_by_kind
from luna_fairseq.translation.score import build_parser as build_score_parser
from luna_fairseq.translation.score import score
from luna_fairseq.translation.scores import TEST_SETS, Translations, check_reference, plain_scores


class Evaluation:
    """Evaluation of one checkpoint on the test text of a prepared folder.

    Args:
        args: parsed command line of ``luna-evaluate``.
        extra: further options for fairseq-generate.

    Raises:
        InputError: The checkpoint does not exist, or luna-prepare-bitext did not write the data.
    """

    def __init__(self, args: argparse.Namespace, extra: Sequence[str]) -> None:
        self.args = args
        self.extra = list(extra)
        if not args.path.is_file():
            raise InputError(
                f"--path {args.path} does not exist. Give a checkpoint that fairseq-train wrote."
            )
        if args.shortlist is not None and not args.shortlist.is_file():
            raise InputError(
                f"--shortlist {args.shortlist} does not exist. Make it with luna-make-shortlist."
            )
        routes = [route for route in ROUTES.values() if (args.data / route.model_file).is_file()]
        if not routes:
            names = " nor ".join(route.model_file for route in ROUTES.values())
            raise InputError(
                f"{args.data} holds neither {names}. Give a folder that luna-prepare-bitext wrote."
            )
        self.route = routes[0]
        self.detokenizer = "moses" if self.route.name == "moses" else None
        first = args.data / "shard0"  # with --shards, the folder of the validation and test text
        self.folder = first if any(first.glob("*.idx")) else args.data
        pairs = {path.name.split(".")[1] for path in self.folder.glob("train.*-*.*.idx")}
        if len(pairs) != 1:
            raise InputError(
                f"{self.folder} holds {len(pairs)} language pairs, expected 1. "
                "Give a folder that luna-prepare-bitext wrote."
            )
        self.languages = pairs.pop().split("-")
        self.steps = FinishedSteps(args.results, "evaluate.json", ["scores.json"])

    def run(self) -> None:
        """Translate the test text, print its scores and write them.

        With ``--tune-lenpen`` the length penalty is chosen on the validation text first.
        """
        if self.args.ema:
            self._write_ema()
        references = list(read_lines(self._plain("test")))
        if self.args.test_set in TEST_SETS:  # before the translation, which may take hours
            check_reference(TEST_SETS[self.args.test_set], references)
        penalty = self.args.lenpen if self.args.tune_lenpen is None else self._tune_length_penalty()
        generated = self._generate("test", penalty)
        print(f"test: beam {self.args.beam}, length penalty {penalty:g}")
        words = [str(generated), "--reference", str(self._plain("test"))]
        score_args = build_score_parser().parse_args(words)
        score_args.target_lang = self.languages[1]
        score_args.detokenize, score_args.split_compounds = self.detokenizer, True
        score_args.documents = self._pieces("test") if self._pieces("test").is_file() else None
        score_args.output = self.args.results / f"hypotheses.{self.languages[1]}"
        score_args.scores = self.args.results / "scores.json"
        score_args.test_set, score_args.samples = self.args.test_set, self.args.samples
        score(score_args)

    def _write_ema(self) -> None:
        """Write the averaged weights to DIR/ema.pt and evaluate this file in place of the checkpoint."""
        averaged = self.args.results / "ema.pt"

        def write() -> Tuple[List[str], Dict[str, Any]]:
            write_ema(self.args.path, averaged)
            return [averaged.name], {}

        self.steps.do("ema", digest(file_stamps([self.args.path])), write, announce=False)
        self.args.path = averaged

    def _tune_length_penalty(self) -> float:
        """Return the length penalty with the best BLEU on the validation text, the first one of several."""
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
        """Translate a split and return the file with the output of fairseq-generate.

        The file of an earlier run is used if its inputs have not changed. For documents, the pieces are
        translated first. A piece whose translation has another number of sentences is translated again
        sentence by sentence.

        Args:
            subset: name of the split, such as "test".
            penalty: length penalty.

        Returns:
            Path of the output file.
        """
        name, path = f"generate-{subset}-lenpen{penalty:g}.txt", self._pieces(subset)
        if not path.is_file():
            return self._generate_from(self.folder, subset, penalty, name)
        check_files(path)
        pieces = read_pieces(path)
        generated = self._generate_from(self.folder, subset, penalty, f"pieces-{name}")
        other, text = find_misdivided(generated, pieces), []  # type: List[int], List[str]
        if other:
            folder = self.args.results / f"{subset}-singly"
            write_single_sentences(self.folder, subset, self.languages, other, folder)
            singly = lines_by_kind(self._generate_from(folder, subset, penalty, f"singly-{name}"))["H"]
            text = [line for _, line in sorted(singly.items())]
        sentences = sum(piece.sentences for piece in pieces)
        again = sum(pieces[number].sentences for number in other)
        print(
            f"{subset}: {sentences:,} sentences in {len(pieces):,} pieces; {len(other):,} pieces had another "
            f"number of sentences, whose {again:,} were translated again one by one"
        )
        write_sentences(generated, pieces, text, self.args.results / name)
        return self.args.results / name

    def _generate_from(self, data: Path, subset: str, penalty: float, name: str) -> Path:
        """Run fairseq-generate on a folder of data and return the file with its output.

        Args:
            data: folder of the binarised data.
            subset: name of the split, such as "test".
            penalty: length penalty.
            name: name of the file in DIR.

        Returns:
            Path of the output file.
        """
        self._check_lengths(data, subset)
        options = self._generate_options(data, subset, penalty)
        files = [
            *filter(None, [self.args.path, self.args.shortlist]),
            *sorted([*data.glob(f"{subset}.*"), *data.glob("dict.*.txt")]),
        ]

        def generate() -> Tuple[List[str], Dict[str, Any]]:
            log = self.args.results / "generate.log"
            sentences = len(read_sizes(data, subset, self.languages, self.languages[0]))
            bar = counter(f"translate {subset}", sentences, "sentences")
            with bar, replacing(self.args.results / name) as output:
                command = fairseq("generate", options)
                run_logged(command, log, (), output, True, lambda line: bar.update(line.startswith("S-")))
            return [name], {}

        self.steps.do(name, digest(options, file_stamps(files)), generate, announce=False)
        return self.args.results / name

    def _check_lengths(self, data: Path, subset: str) -> None:
        """Check that the model's positions suffice for all lines of a split.

        Args:
            data: folder of the binarised data.
            subset: name of the split, such as "test".

        Raises:
            InputError: A line has more tokens than the model has positions.
        """
        positions = {**_position_options(self.args.path), **parse_options(self.extra)}
        for language, name in zip(self.languages, ("--max-source-positions", "--max-target-positions")):
            longest = int(read_sizes(data, subset, self.languages, language).max(initial=0))
            if name in positions and longest > int(positions[name]):
                raise InputError(
                    f"{subset}.{language} of {data} has a line of {longest:,} tokens with its end symbol, "
                    f"and the model reads {positions[name]}. Split the line (for documents, prepare with a "
                    f"smaller --documents), or train with {name} {longest}."
                )

    def _generate_options(self, data: Path, subset: str, penalty: float) -> List[str]:
        """Return the command line of fairseq-generate, without the name of the program.

        Args:
            data: folder with the binarised data.
            subset: name of the split to translate, such as "test".
            penalty: exponent of the length penalty (``--lenpen``).
        """
        source, target = self.languages
        own = {name[2:].replace("-", "_"): value for name, value in parse_options(self.extra).items()}
        limits = limits_by_source(own).items()
        length = [word for name, limit in limits for word in (f"--{name.replace('_', '-')}", str(limit))]
        return [
            *[str(data), "--user-dir", USER_DIR, "--path", str(self.args.path)],
            *["--source-lang", source, "--target-lang", target, "--gen-subset", subset],
            *["--beam", str(self.args.beam), "--lenpen", str(penalty), "--remove-bpe", self.route.remove_bpe],
            # Without a batch size multiple of 1 fairseq leaves out the sentences of an incomplete last batch.
            *["--max-tokens", str(self.args.max_tokens), "--required-batch-size-multiple", "1"],
            *(["--int8"] if self.args.int8 else []),
            *(["--shortlist", str(self.args.shortlist)] if self.args.shortlist else []),
            *[*length, "--log-format", "none", *chain(*_position_options(self.args.path).items())],
            *self.extra,
        ]

    def _pieces(self, subset: str) -> Path:
        """Return the path of the file that lists the pieces of documents. It exists for documents only."""
        return self.args.data / "plain" / f"{subset}.pieces"

    def _plain(self, subset: str) -> Path:
        """Return the path of the plain target text of a split, which the scores need.

        Args:
            subset: name of the split, such as "test".

        Raises:
            InputError: The file does not exist, or its checksum differs.
        """
        path = self.args.data / "plain" / f"{subset}.{self.languages[1]}"
        if not path.is_file():
            raise InputError(f"{path} does not exist. Prepare {self.args.data} again, with {subset} text.")
        check_files(path)
        return path


@lru_cache(maxsize=None)
def _position_options(checkpoint: Path) -> Dict[str, str]:
    """Return the model's positions as options, so that fairseq's task does not use its own defaults.

    Args:
        checkpoint: path of the checkpoint.

    Returns:
        Values of ``--max-source-positions`` and ``--max-target-positions``, by option.
    """
    model = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"]
    positions = {
        f"--max-{side}-positions": option_of(model, f"max_{side}_positions") for side in ("source", "target")
    }
    return {option: str(value) for option, value in positions.items() if value}
