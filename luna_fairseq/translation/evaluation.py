"""Evaluate a translation checkpoint: translate the test text and score it (``luna-evaluate``)."""

from __future__ import annotations

import argparse
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import luna_fairseq.models  # noqa: F401  (registers the models that a checkpoint may name)
from fairseq import checkpoint_utils
from luna_fairseq.commands.checkpoint import get_option
from luna_fairseq.commands.logged import fairseq_command, run_logged
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files, digest, file_stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.files.writing import replacing
from luna_fairseq.models.ema import write_ema
from luna_fairseq.progress import progress_bar
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.documents import read_pieces
from luna_fairseq.text.output_length import limits_by_source
from luna_fairseq.text.subword import SUBWORD_METHODS
from luna_fairseq.translation.document_output import (
    find_mismatched_pieces,
    read_sizes,
    write_sentences,
    write_single_sentences,
)
from luna_fairseq.translation.evaluate import LENGTH_PENALTIES
from luna_fairseq.translation.generated import GenerateOutput, lines_by_kind
from luna_fairseq.translation.score import build_parser as build_score_parser
from luna_fairseq.translation.score import score
from luna_fairseq.translation.scores import TEST_SETS, Translations, check_reference, plain_scores


class Evaluation:
    """Evaluation of a checkpoint on the test text of a prepared data folder.

    Args:
        args: parsed command-line arguments of ``luna-evaluate``.
        extra: additional options for fairseq-generate.

    Raises:
        InputError: The checkpoint or the shortlist does not exist, or the data folder was not written by
            luna-prepare-bitext.
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
        methods = [method for method in SUBWORD_METHODS.values() if (args.data / method.model_file).is_file()]
        if not methods:
            names = " nor ".join(method.model_file for method in SUBWORD_METHODS.values())
            raise InputError(
                f"{args.data} holds neither {names}. Give a folder that luna-prepare-bitext wrote."
            )
        self.method = methods[0]
        self.detokenizer = "moses" if self.method.name == "moses" else None
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
        """Translate the test text, score the translation, and print and write the scores.

        With ``--tune-lenpen``, the length penalty is chosen on the validation text first.
        """
        if self.args.ema:
            self._write_ema()
        references = list(read_lines(self._reference_path("test")))
        if self.args.test_set in TEST_SETS:  # before the translation, which may take hours
            check_reference(TEST_SETS[self.args.test_set], references)
        penalty = self.args.lenpen if self.args.tune_lenpen is None else self._tune_length_penalty()
        generated = self._generate("test", penalty)
        print(f"test: beam {self.args.beam}, length penalty {penalty:g}")
        words = [str(generated), "--reference", str(self._reference_path("test"))]
        score_args = build_score_parser().parse_args(words)
        score_args.target_lang = self.languages[1]
        score_args.detokenize, score_args.split_compounds = self.detokenizer, True
        score_args.documents = self._pieces_path("test") if self._pieces_path("test").is_file() else None
        score_args.output = self.args.results / f"hypotheses.{self.languages[1]}"
        score_args.scores = self.args.results / "scores.json"
        score_args.test_set, score_args.samples = self.args.test_set, self.args.samples
        score(score_args)

    def _write_ema(self) -> None:
        """Write the exponential moving average of the weights to ``ema.pt`` in the results folder.

        The rest of the evaluation uses this file in place of the checkpoint.
        """
        averaged = self.args.results / "ema.pt"

        def write() -> Tuple[List[str], Dict[str, Any]]:
            write_ema(self.args.path, averaged)
            return [averaged.name], {}

        self.steps.do("ema", digest(file_stamps([self.args.path])), write, announce=False)
        self.args.path = averaged

    def _tune_length_penalty(self) -> float:
        """Translate the validation text with several length penalties, and return the best one.

        Returns:
            Length penalty with the highest BLEU. Ties go to the penalty that is tried first.
        """
        references = list(read_lines(self._reference_path("valid")))
        scores: Dict[float, float] = {}
        print("length penalty   BLEU on the validation text")
        for penalty in self.args.tune_lenpen or LENGTH_PENALTIES:
            hypotheses = GenerateOutput(self._generate("valid", penalty)).hypotheses(references)
            text = Translations.read(hypotheses, references, self.detokenizer, self.languages[1])
            scores[penalty] = plain_scores(text, "13a")[0].value
            print(f"{penalty:14g}   {scores[penalty]:.2f}", flush=True)
        return max(scores, key=lambda penalty: scores[penalty])

    def _generate(self, subset: str, penalty: float) -> Path:
        """Translate a split, unless an earlier run has translated it with the same inputs.

        Documents are translated in pieces of several sentences. If the translation of a piece has more or
        fewer sentences than the source, the sentences of the piece are translated again individually.

        Args:
            subset: name of the split, such as "test".
            penalty: length penalty (``--lenpen``).

        Returns:
            Path of the output file, in the format of fairseq-generate with one hypothesis per sentence.
        """
        name, path = f"generate-{subset}-lenpen{penalty:g}.txt", self._pieces_path(subset)
        if not path.is_file():
            return self._generate_from(self.folder, subset, penalty, name)
        check_files(path)
        pieces = read_pieces(path)
        generated = self._generate_from(self.folder, subset, penalty, f"pieces-{name}")
        other = find_mismatched_pieces(generated, pieces)
        text: List[str] = []
        if other:
            folder = self._write_single_sentences(subset, penalty, other)
            singly = lines_by_kind(self._generate_from(folder, subset, penalty, f"singly-{name}"))["H"]
            text = [line for _, line in sorted(singly.items())]
        sentences = sum(piece.sentences for piece in pieces)
        again = sum(pieces[number].sentences for number in other)
        print(
            f"{subset}: {sentences:,} sentences in {len(pieces):,} pieces; {len(other):,} pieces came back "
            f"with another number of sentences, so their {again:,} sentences were translated again one by one"
        )
        write_sentences(generated, pieces, text, self.args.results / name)
        return self.args.results / name

    def _write_single_sentences(self, subset: str, penalty: float, pieces: List[int]) -> Path:
        """Write the sentences of selected document pieces as a data folder, unless an earlier run wrote it.

        An existing folder is kept, because new files would make fairseq-generate run again.

        Args:
            subset: name of the split, such as "test".
            penalty: length penalty (``--lenpen``) with which the pieces were translated.
            pieces: indices of the document pieces.

        Returns:
            Path of the data folder.
        """
        name = f"{subset}-singly-lenpen{penalty:g}"
        folder = self.args.results / name

        def write() -> Tuple[List[str], Dict[str, Any]]:
            write_single_sentences(self.folder, subset, self.languages, pieces, folder)
            return [f"{name}/{path.name}" for path in sorted(folder.iterdir())], {}

        self.steps.do(name, digest(pieces, file_stamps(self._data_files(self.folder, subset))), write, False)
        return folder

    def _generate_from(self, data: Path, subset: str, penalty: float, name: str) -> Path:
        """Run fairseq-generate on a data folder, unless an earlier run has finished with the same inputs.

        Args:
            data: folder with the binarized data.
            subset: name of the split, such as "test".
            penalty: length penalty (``--lenpen``).
            name: name of the output file in the results folder.

        Returns:
            Path of the output file.
        """
        self._check_lengths(data, subset)
        options = self._generate_options(data, subset, penalty)
        files = [*filter(None, [self.args.path, self.args.shortlist]), *self._data_files(data, subset)]

        def generate() -> Tuple[List[str], Dict[str, Any]]:
            log = self.args.results / "generate.log"
            sentences = len(read_sizes(data, subset, self.languages, self.languages[0]))
            bar = progress_bar(f"translate {subset}", sentences, "sentences")
            with bar, replacing(self.args.results / name) as output:
                command = fairseq_command("generate", options)
                run_logged(command, log, (), output, True, lambda line: bar.update(line.startswith("S-")))
            return [name], {}

        self.steps.do(name, digest(options, file_stamps(files)), generate, announce=False)
        return self.args.results / name

    def _data_files(self, data: Path, subset: str) -> List[Path]:
        """Return the paths of the binarized files of a split and of the dictionaries.

        Args:
            data: folder with the binarized data.
            subset: name of the split, such as "test".
        """
        return sorted([*data.glob(f"{subset}.*"), *data.glob("dict.*.txt")])

    def _check_lengths(self, data: Path, subset: str) -> None:
        """Raise InputError if an example of a split is longer than the maximum length of the model.

        Args:
            data: folder with the binarized data.
            subset: name of the split, such as "test".

        Raises:
            InputError: A line is longer than ``--max-source-positions`` or ``--max-target-positions``.
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
        """Return the command-line arguments of fairseq-generate.

        Args:
            data: folder with the binarized data.
            subset: name of the split to translate, such as "test".
            penalty: length penalty (``--lenpen``).

        Returns:
            List of arguments without the program name.
        """
        source, target = self.languages
        user_options = {
            name[2:].replace("-", "_"): value for name, value in parse_options(self.extra).items()
        }
        length: List[str] = []
        for name, limit in limits_by_source(user_options).items():
            length += [f"--{name.replace('_', '-')}", str(limit)]
        return [
            *[str(data), "--user-dir", USER_DIR, "--path", str(self.args.path)],
            *["--source-lang", source, "--target-lang", target, "--gen-subset", subset],
            *[
                "--beam",
                str(self.args.beam),
                "--lenpen",
                str(penalty),
                "--remove-bpe",
                self.method.remove_bpe,
            ],
            # Without a batch size multiple of 1 fairseq skips the sentences of an incomplete last batch.
            *["--max-tokens", str(self.args.max_tokens), "--required-batch-size-multiple", "1"],
            *(["--int8"] if self.args.int8 else []),
            *(["--shortlist", str(self.args.shortlist)] if self.args.shortlist else []),
            *[*length, "--log-format", "none", *chain(*_position_options(self.args.path).items())],
            *self.extra,
        ]

    def _pieces_path(self, subset: str) -> Path:
        """Return the path of the file that lists the document pieces of a split.

        The file exists only if the data was prepared with ``--documents``.
        """
        return self.args.data / "plain" / f"{subset}.pieces"

    def _reference_path(self, subset: str) -> Path:
        """Return the path of the plain target text of a split, after verifying its checksum.

        Args:
            subset: name of the split, such as "test".

        Returns:
            Path of the reference file.

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
    """Return the maximum sequence lengths of a checkpoint's model as fairseq-generate options.

    Without these options, fairseq's translation task would use its own default of 1,024 tokens.

    Args:
        checkpoint: path of the checkpoint.

    Returns:
        Values of ``--max-source-positions`` and ``--max-target-positions``, keyed by option.
    """
    model = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"]
    positions = {
        f"--max-{side}-positions": get_option(model, f"max_{side}_positions") for side in ("source", "target")
    }
    return {option: str(value) for option, value in positions.items() if value}
