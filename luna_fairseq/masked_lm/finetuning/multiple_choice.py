"""Multiple choice: RACE (Lai et al., 2017) and CommonsenseQA (Talmor et al., 2019), from their JSON files.

The first input of an example is the text that its candidates share, as fairseq's sentence_ranking expects.
The model reads ``<s> candidate </s> </s> passage </s>`` for RACE and ``<s> A: candidate </s> Q: question
</s>`` for CommonsenseQA.
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
    """RACE, published as the folders train, dev and test, in which each file holds one passage."""

    is_multiple_choice = True

    def read(self, folder: Path, split: str) -> List[Example]:
        """Return the questions of all passages of a split as examples.

        Args:
            folder: folder that holds RACE's folders train, dev and test.
            split: fairseq's name of the split.

        Raises:
            InputError: The split has no passages, or one of its files is malformed.
        """
        root = folder / self.splits[split]
        with count_other_files(str(root)) as is_data:
            paths = sorted(root.rglob("*.txt"))
            files = [path for path in paths if is_data(path.relative_to(root).as_posix())]
        if not files:
            raise InputError(
                f"{root} has no passages. Give the folder of RACE that holds train, dev and test."
            )
        return [example for path in files for example in self._examples(path)]

    def _examples(self, path: Path) -> Iterator[Example]:
        """Yield an example for each question of a passage.

        Args:
            path: file of the passage.

        Yields:
            Example with the passage, one candidate for each option, and the label.

        Raises:
            InputError: The file is malformed.
        """
        passage = _parse("\n".join(read_lines(path)), str(path))
        try:
            article = _one_line(passage["article"])
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
    """CommonsenseQA, published as files with one question a line."""

    is_multiple_choice = True

    def read(self, folder: Path, split: str) -> List[Example]:
        """Return the questions of a split as examples.

        Args:
            folder: folder of the .jsonl files.
            split: fairseq's name of the split.

        Raises:
            InputError: The file is empty, or one of its lines is malformed.
        """
        path = folder / self.splits[split]
        lines = [(f"{path}, line {number}", line) for number, line in enumerate(read_lines(path), 1) if line]
        if not lines:
            raise InputError(f"{path} is empty. Give the published file.")
        return [self._example(line, location) for location, line in lines]

    def _example(self, line: str, location: str) -> Example:
        """Parse a line and return its question as an example.

        Args:
            line: JSON of the question.
            location: file and line, for messages.

        Returns:
            Example with one candidate for each choice, and the label.

        Raises:
            InputError: The line is malformed.
        """
        entry = _parse(line, location)
        try:
            question = _one_line(entry["question"]["stem"])
            choices = {choice["label"]: _one_line(choice["text"]) for choice in entry["question"]["choices"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{location} is not a question of CommonsenseQA. Give a line with a stem and choices."
            ) from error
        if sorted(choices) != list(self.labels):
            raise InputError(
                f"{location}: expected the choices {', '.join(self.labels)}, got {', '.join(choices)}"
            )
        label = entry.get("answerKey")
        candidates = (f"A: {choices[name]}" for name in self.labels)
        return Example((f"Q: {question}", *candidates), label and self.check_label(label, location))


def _parse(text: str, location: str) -> Any:
    """Parse JSON text.

    Args:
        text: text to parse.
        location: file and line of the text, for the message.

    Returns:
        Parsed value.

    Raises:
        InputError: The text is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{location} is not JSON: {error}") from error


def _one_line(text: str) -> str:
    """Return the text with each run of whitespace replaced by one space."""
    return " ".join(text.split())


def _fill_in(question: str, option: str) -> str:
    """Return a question with its answer.

    A gap "_" in the question is replaced by the option. Otherwise the option follows the question.

    Args:
        question: text of the question.
        option: text of an answer.

    Returns:
        Text in one line.
    """
    return _one_line(question.replace("_", option) if "_" in question else f"{question} {option}")


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
