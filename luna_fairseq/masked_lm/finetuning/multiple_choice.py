"""Multiple choice: RACE (Lai et al., 2017) and CommonsenseQA (Talmor et al., 2019), from their JSON files.

The first input is what the candidates have in common, as fairseq's sentence_ranking has it: the model reads
``<s> candidate </s> </s> passage </s>`` of RACE and ``<s> A: candidate </s> Q: question </s>`` of
CommonsenseQA.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, List

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import data_alone
from luna_fairseq.masked_lm.finetuning.task import Example, FineTuningTask
from luna_fairseq.text.bitext import read_lines


class Race(FineTuningTask):
    """Folders train, dev and test, with folders middle and high of files of one passage each."""

    is_multiple_choice = True

    def read(self, folder: Path, split: str) -> List[Example]:
        root = folder / self.splits[split]
        with data_alone(str(root)) as is_data:
            found = sorted(root.rglob("*.txt"))
            files = [path for path in found if is_data(path.relative_to(root).as_posix())]
        if not files:
            raise InputError(
                f"{root} has no passages: give the folder of RACE that holds train, dev and test"
            )
        return [example for path in files for example in self._examples(path)]

    def _examples(self, path: Path) -> Iterator[Example]:
        passage = _parse("\n".join(read_lines(path)), str(path))
        try:
            article = _one_line(passage["article"])
            questions = list(zip(passage["questions"], passage["options"], passage["answers"]))
            whole = len(questions) == len(passage["questions"]) == len(passage["answers"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is no passage of RACE: article, questions, options or answers"
            ) from error
        if not whole:
            raise InputError(f"{path}: questions, options and answers differ in number")
        for number, (question, options, answer) in enumerate(questions, 1):
            place = f"{path}, question {number}"
            if len(options) != len(self.labels):
                raise InputError(f"{place}: there are {len(options)} options instead of {len(self.labels)}")
            candidates = (_fill_in(question, option) for option in options)
            yield Example((article, *candidates), self.check_label(answer, place))


class CommonsenseQA(FineTuningTask):
    """Files of one question a line."""

    is_multiple_choice = True

    def read(self, folder: Path, split: str) -> List[Example]:
        path = folder / self.splits[split]
        lines = [(f"{path}, line {number}", line) for number, line in enumerate(read_lines(path), 1) if line]
        if not lines:
            raise InputError(f"{path} is empty")
        return [self._example(line, place) for place, line in lines]

    def _example(self, line: str, place: str) -> Example:
        entry = _parse(line, place)
        try:
            question = _one_line(entry["question"]["stem"])
            choices = {choice["label"]: _one_line(choice["text"]) for choice in entry["question"]["choices"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{place} is no question of CommonsenseQA: it has no stem or choices") from error
        if sorted(choices) != list(self.labels):
            raise InputError(
                f"{place}: the choices are {', '.join(choices)} instead of {', '.join(self.labels)}"
            )
        label = entry.get("answerKey")
        candidates = (f"A: {choices[name]}" for name in self.labels)
        return Example((f"Q: {question}", *candidates), label and self.check_label(label, place))


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{place} is not JSON: {error}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fill_in(question: str, option: str) -> str:
    """A gap is filled with the option; after a question, the option follows."""
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
