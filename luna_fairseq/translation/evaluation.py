"""Evaluation of a translation checkpoint: translate the test text and score it (``luna-evaluate``)."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Tuple

import luna_fairseq.models  # noqa: F401  (registers the models that a checkpoint may name)
from fairseq import checkpoint_utils
from luna_fairseq.checks.model_options import get_option
from luna_fairseq.commands.logged import fairseq_command, run_logged
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files, digest, file_stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.files.scores import SCORES, describe_checkpoint
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
from luna_fairseq.translation.evaluate import LENGTH_PENALTIES, EvaluationOptions
from luna_fairseq.translation.generated import GenerateOutput, lines_by_kind
from luna_fairseq.translation.languages import find_language_pairs
from luna_fairseq.translation.score import ScoreOptions, score
from luna_fairseq.translation.scores import (
    TEST_SETS,
    Translations,
    check_plain_reference,
    check_reference,
    check_scoring_packages,
    choose_tokenizer,
    plain_scores,
    should_score_moses_tokens,
)


class Evaluation:
    """Evaluation of a checkpoint on a test text of a prepared data folder.

    The constructor checks the options. :meth:`run` translates the text and scores the translation, but skips
    the steps that an earlier run has finished. In the methods, ``data`` is a data folder, ``subset`` a split
    such as "test", and ``penalty`` the length penalty of the beam search.
    """

    def __init__(self, options: EvaluationOptions) -> None:
        self.options, self.path = options, options.path
        if not options.path.is_file():
            raise InputError(
                f"--path {options.path} does not exist. Give a checkpoint that fairseq-train wrote."
            )
        self.averaged = options.results / "ema.pt"
        if options.ema and options.path.resolve() == self.averaged.resolve():
            raise InputError(f"--path {options.path} is the file that --ema writes. Use another --results.")
        self.stamps = file_stamps([self.path])
        if options.shortlist is not None and not options.shortlist.is_file():
            raise InputError(
                f"--shortlist {options.shortlist} does not exist. Make it with luna-make-shortlist."
            )
        methods = [
            method for method in SUBWORD_METHODS.values() if (options.data / method.model_file).is_file()
        ]
        if not methods:
            names = " nor ".join(method.model_file for method in SUBWORD_METHODS.values())
            raise InputError(
                f"{options.data} holds neither {names}. Give a folder that luna-prepare-bitext wrote."
            )
        self.method = methods[0]
        self.detokenizer = "moses" if self.method.name == "moses" else None
        first = options.data / "shard0"  # with --shards, the folder of the validation and test text
        self.folder = first if any(first.glob("*.idx")) else options.data
        pairs = find_language_pairs(self.folder)
        if len(pairs) != 1:
            raise InputError(
                f"{self.folder} holds {len(pairs)} language pairs, expected 1. "
                "Give a folder that luna-prepare-bitext wrote."
            )
        self.languages = pairs[0]
        self.tokenizer = choose_tokenizer(options.tokenize, self.languages[1])
        check_scoring_packages(self.tokenizer, self.languages[1], self.detokenizer)
        self.subset = options.subset or "test"
        suffix = "" if self.subset == "test" else f"-{self.subset}"
        self.hypotheses = options.results / f"hypotheses{suffix}.{self.languages[1]}"
        self.scores = options.results / SCORES.replace(".", f"{suffix}.")
        self.steps = FinishedSteps(options.results, "evaluate.json", [self.scores.name])

    def run(self) -> None:
        """Translate the test text, score the translation, and write and print the scores.

        With ``--tune-lenpen``, the length penalty is chosen on the validation text first.
        """
        options, subset = self.options, self.subset
        origin = describe_checkpoint(options.path, options.ema)
        self._check_unchanged()
        if options.ema:
            self._write_ema()
        references = list(read_lines(self._reference_path(subset)))
        # Before the translation, which may take hours.
        if options.test_set in TEST_SETS:
            check_reference(TEST_SETS[options.test_set], references)
        if should_score_moses_tokens(self.languages[1]):
            check_plain_reference(references, str(self._reference_path(subset)))
        penalty = options.lenpen if options.tune_lenpen is None else self._tune_length_penalty()
        generated = self._generate(subset, penalty)
        print(f"{subset}: beam {options.beam}, length penalty {penalty:g}")
        pieces = self._pieces_path(subset)
        scored = ScoreOptions(
            generated,
            reference=self._reference_path(subset),
            output=self.hypotheses,
            scores=self.scores,
            tokenize=self.tokenizer,
            detokenize=self.detokenizer,
            split_compounds=should_score_moses_tokens(self.languages[1]),
            target_lang=self.languages[1],
            documents=pieces if pieces.is_file() else None,
            test_set=options.test_set,
            samples=options.samples,
        )
        score(scored, {**origin, "settings": self._settings(penalty)})
        others = [] if options.subset else self._other_test_texts()
        if others:
            print(f"{options.data} has more test texts: translate them with --subset {' or '.join(others)}")

    def _other_test_texts(self) -> List[str]:
        """Return the names of the second and all further test texts, such as "test1"."""
        name = re.compile(rf"(test\d+)\.{re.escape(self.languages[1])}")
        matches = (name.fullmatch(path.name) for path in (self.options.data / "plain").glob("test*"))
        return sorted(match[1] for match in matches if match)

    def _settings(self, penalty: float) -> Dict[str, Any]:
        """Return the search settings to record with the scores, such as beam size and length penalty."""
        options = self.options
        settings: Dict[str, Any] = {"beam": options.beam, "lenpen": penalty}
        if options.int8:
            settings["int8"] = True
        if options.shortlist:
            settings["shortlist"] = options.shortlist.name
        generate = [word for word in options.generate if word != "--cpu"]
        if generate:
            settings["options"] = " ".join(generate)
        return settings

    def _write_ema(self) -> None:
        """Write the moving average of the weights to ``ema.pt``, and select this file for the evaluation."""

        def write() -> Tuple[List[str], Dict[str, Any]]:
            write_ema(self.path, self.averaged)
            self._check_unchanged()
            return [self.averaged.name], {}

        self.steps.do("ema", digest(self.stamps), write, announce=False)
        self.path, self.stamps = self.averaged, file_stamps([self.averaged])

    def _check_unchanged(self) -> None:
        """Raise InputError if another process, such as a training, has replaced the checkpoint."""
        if file_stamps([self.path]) != self.stamps:
            raise InputError(
                f"{self.path} changed during the evaluation. Copy the checkpoint, and evaluate the copy."
            )

    def _tune_length_penalty(self) -> float:
        """Return the length penalty with the best BLEU on the validation text, and print all BLEU scores."""
        references = list(read_lines(self._reference_path("valid")))
        scores: Dict[float, float] = {}
        print("length penalty   BLEU on the validation text")
        for penalty in self.options.tune_lenpen or LENGTH_PENALTIES:
            hypotheses = GenerateOutput(self._generate("valid", penalty)).hypotheses(references)
            text = Translations.read(hypotheses, references, self.detokenizer, self.languages[1])
            scores[penalty] = plain_scores(text, self.tokenizer)[0].value
            print(f"{penalty:14g}   {scores[penalty]:.2f}", flush=True)
        return max(scores, key=lambda penalty: scores[penalty])

    def _generate(self, subset: str, penalty: float) -> Path:
        """Translate a split. Return an output file of fairseq-generate with one hypothesis per sentence.

        Documents are translated in pieces of several sentences. If the translation of a piece has more or
        fewer sentences than the source, the sentences of the piece are translated again one by one. A
        translation of the same inputs from an earlier run is reused.
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
        write_sentences(generated, pieces, text, self.options.results / name)
        return self.options.results / name

    def _write_single_sentences(self, subset: str, penalty: float, pieces: List[int]) -> Path:
        """Write the source sentences of document pieces as separate examples, and return their data folder.

        ``pieces`` holds the indices of the pieces. The folder is not rewritten if it is up to date.
        """
        name = f"{subset}-singly-lenpen{penalty:g}"
        folder = self.options.results / name

        def write() -> Tuple[List[str], Dict[str, Any]]:
            write_single_sentences(self.folder, subset, self.languages, pieces, folder)
            return [f"{name}/{path.name}" for path in sorted(folder.iterdir())], {}

        self.steps.do(name, digest(pieces, file_stamps(self._data_files(self.folder, subset))), write, False)
        return folder

    def _generate_from(self, data: Path, subset: str, penalty: float, name: str) -> Path:
        """Run fairseq-generate on a split, unless the output ``name`` is up to date. Return its path."""
        self._check_lengths(data, subset)
        options = self._generate_options(data, subset, penalty)
        values = parse_options(self.options.generate).values()
        # The language model of --lm-path is an example.
        named = [Path(value) for value in values if os.path.isfile(value)]
        files = [*filter(None, [self.options.shortlist]), *named, *self._data_files(data, subset)]

        def generate() -> Tuple[List[str], Dict[str, Any]]:
            log = self.options.results / "generate.log"
            sentences = len(read_sizes(data, subset, self.languages, self.languages[0]))
            bar = progress_bar(f"translate {subset}", sentences, "sentences")
            with bar, replacing(self.options.results / name) as output:
                command = fairseq_command("generate", options)
                run_logged(command, log, (), output, True, lambda line: bar.update(line.startswith("S-")))
                self._check_unchanged()
            return [name], {}

        self.steps.do(name, digest(options, [*self.stamps, *file_stamps(files)]), generate, announce=False)
        return self.options.results / name

    def _data_files(self, data: Path, subset: str) -> List[Path]:
        """Return the paths of a split's binarized files and of all dictionaries."""
        return sorted([*data.glob(f"{subset}.*"), *data.glob("dict*.txt")])

    def _check_lengths(self, data: Path, subset: str) -> None:
        """Raise InputError if an example of a split is longer than the maximum length of the model."""
        positions = {**_position_options(self.path), **parse_options(self.options.generate)}
        for language, name in zip(self.languages, ("--max-source-positions", "--max-target-positions")):
            longest = int(read_sizes(data, subset, self.languages, language).max(initial=0))
            if name in positions and longest > int(positions[name]):
                raise InputError(
                    f"{subset}.{language} of {data} has a line of {longest:,} tokens with its end symbol, "
                    f"and the model reads {positions[name]}. Split the line (for documents, prepare with a "
                    f"smaller --documents), or train with {name} {longest}."
                )

    def _generate_options(self, data: Path, subset: str, penalty: float) -> List[str]:
        """Return the arguments of fairseq-generate for a split and a length penalty."""
        source, target = self.languages
        user_options = {
            name[2:].replace("-", "_"): value for name, value in parse_options(self.options.generate).items()
        }
        sizes = [read_sizes(data, subset, self.languages, language) for language in self.languages]
        # fairseq refuses an example that is longer than a batch.
        max_tokens = max(int(x.max(initial=self.options.max_tokens)) for x in sizes)
        length: List[str] = []
        for name, limit in limits_by_source(user_options).items():
            length += [f"--{name.replace('_', '-')}", str(limit)]
        return [
            *[str(data), "--user-dir", USER_DIR, "--path", str(self.path)],
            *["--source-lang", source, "--target-lang", target, "--gen-subset", subset],
            *[
                "--beam",
                str(self.options.beam),
                "--lenpen",
                str(penalty),
                "--remove-bpe",
                self.method.remove_bpe,
            ],
            # Without a batch size multiple of 1 fairseq skips the sentences of an incomplete last batch.
            *["--max-tokens", str(max_tokens), "--required-batch-size-multiple", "1"],
            *(["--int8"] if self.options.int8 else []),
            *(["--shortlist", str(self.options.shortlist)] if self.options.shortlist else []),
            *[*length, "--log-format", "none", *chain(*_position_options(self.path).items())],
            *self.options.generate,
        ]

    def _pieces_path(self, subset: str) -> Path:
        """Return the path of a split's list of document pieces. The file exists only for document data."""
        return self.options.data / "plain" / f"{subset}.pieces"

    def _reference_path(self, subset: str) -> Path:
        """Return the path of a split's plain target text. Raise InputError if it is missing or changed."""
        path = self.options.data / "plain" / f"{subset}.{self.languages[1]}"
        if not path.is_file():
            raise InputError(f"{path} does not exist. Prepare {self.options.data} again, with {subset} text.")
        check_files(path)
        return path


@lru_cache(maxsize=None)
def _position_options(checkpoint: Path) -> Dict[str, str]:
    """Return the maximum sequence lengths in a checkpoint, keyed by option of fairseq-generate.

    The keys are "--max-source-positions" and "--max-target-positions", for which fairseq defaults to 1,024.
    """
    model = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"]
    positions = {
        f"--max-{side}-positions": get_option(model, f"max_{side}_positions") for side in ("source", "target")
    }
    return {option: str(value) for option, value in positions.items() if value}
