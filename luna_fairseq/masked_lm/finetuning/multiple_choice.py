"""Multiple-choice tasks RACE (Lai et al., 2017) and CommonsenseQA (Talmor et al., 2019).

fairseq's task sentence_ranking scores each candidate answer. The model input is
``<s> candidate </s> </s> passage </s>`` for RACE and ``<s> A: candidate </s> Q: question </s>`` for
CommonsenseQA. The first input of an example is the text that is common to all candidates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, List

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import count_other_files
from luna_fairseq.masked_lm.finetuning.task import Example, FineTuningTask
from luna_fairseq.text.bitext import read_lines


class Race(FineTuningTask):
    """The RACE reading comprehension task, with four answer choices per question about a passage.

    The published folders train, dev and test contain one JSON file per passage.
    """

    is_multiple_choice = True

    def read(self, folder: Path, split: str) -> List[Example]:
        """Read the questions about all passages in a split."""
        root = folder / self.splits[split]
        with count_other_files(str(root)) as is_data:
            paths = sorted(root.rglob("*.txt"))
            files = [path for path in paths if is_data(path.relative_to(root).as_posix())]
        if not files:
            raise InputError(
                f"{root} has no passages. Give the folder of RACE that holds train, dev and test."
            )
        return [example for path in files for example in self._read_passage(path)]

    def _read_passage(self, path: Path) -> Iterator[Example]:
        """Yield an example for each question in a file, which contains one passage and its questions.

        The inputs of an example are the passage and, per option, the question completed or followed by it.
        """
        passage = _parse_json("\n".join(read_lines(path)), str(path))
        try:
            article = _normalize_spaces(passage["article"])
            questions = list(zip(passage["questions"], passage["options"], passage["answers"]))
            is_complete = len(questions) == len(passage["questions"]) == len(passage["answers"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is not a passage of RACE. Give a file with article, questions, options and answers."
            ) from error
        if not is_complete:
            raise InputError(
                f"{path} does not have as many options and answers as questions. Correct the file."
            )
        for number, (question, options, answer) in enumerate(questions, 1):
            location = f"{path}, question {number}"
            if len(options) != len(self.labels):
                raise InputError(f"{location}: expected {len(self.labels)} options, got {len(options)}")
            candidates = (_fill_in(question, option) for option in options)
            yield Example((article, *candidates), self.check_label(answer, location))


class CommonsenseQA(FineTuningTask):
    """The CommonsenseQA question-answering task, with five answer choices per question.

    Each line of a published file is one question as a JSON object.
    """

    is_multiple_choice = True

    def read(self, folder: Path, split: str) -> List[Example]:
        """Read the questions of a split in the order of the file."""
        path = folder / self.splits[split]
        lines = [(f"{path}, line {number}", line) for number, line in enumerate(read_lines(path), 1) if line]
        if not lines:
            raise InputError(f"{path} is empty. Give the published file.")
        is_test = split.startswith("test")
        return [self._parse_question(line, location, is_test) for location, line in lines]

    def _parse_question(self, line: str, location: str, is_test: bool) -> Example:
        """Convert a line of JSON to an example. In a test set, the answer may be missing or empty."""
        entry = _parse_json(line, location)
        try:
            question = _normalize_spaces(entry["question"]["stem"])
            choices = {
                choice["label"]: _normalize_spaces(choice["text"]) for choice in entry["question"]["choices"]
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{location} is not a question of CommonsenseQA. Give a line with a stem and choices."
            ) from error
        if sorted(choices) != list(self.labels):
            raise InputError(
                f"{location}: expected the choices {', '.join(self.labels)}, got {', '.join(choices)}"
            )
        answer = entry.get("answerKey") or ""
        label = None if is_test and not answer else self.check_label(answer, location)
        candidates = (f"A: {choices[name]}" for name in self.labels)
        return Example((f"Q: {question}", *candidates), label)


def _parse_json(text: str, location: str) -> Any:
    """Parse JSON text. Raise InputError, which names ``location``, if the text is invalid."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{location} is not JSON: {error}") from error


def _normalize_spaces(text: str) -> str:
    r"""Replace each run of whitespace with one space: ``"a \n b "`` becomes ``"a b"``."""
    return " ".join(text.split())


def _fill_in(question: str, option: str) -> str:
    """Replace the gap "_" in a question with an answer, or append the answer if there is no gap.

    Example:
        >>> _fill_in("Tom likes _ .", "tea"), _fill_in("What does Tom like?", "Tea.")
        ('Tom likes tea .', 'What does Tom like? Tea.')
    """
    return _normalize_spaces(question.replace("_", option) if "_" in question else f"{question} {option}")


_RACE_SPLITS = {"train": "train", "valid": "dev", "test": "test/middle", "test1": "test/high"}
_COMMONSENSE_QA_SPLITS = {
    "train": "train_rand_split.jsonl",
    "valid": "dev_rand_split.jsonl",
    "test": "test_rand_split_no_answers.jsonl",
}

MULTIPLE_CHOICE = (
    Race("RACE", 5, ("A", "B", "C", "D"), ("accuracy",), _RACE_SPLITS),
    CommonsenseQA("CommonsenseQA", 6, ("A", "B", "C", "D", "E"), ("accuracy",), _COMMONSENSE_QA_SPLITS),
)
