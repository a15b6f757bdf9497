"""The words of the demonstration grammar, read from the tables."""

import re
from dataclasses import dataclass
from typing import Callable, Dict, FrozenSet, List, Optional, Tuple, TypeVar

from demo_grammar import tables


@dataclass(frozen=True)
class Noun:
    english: str
    english_plural: str  # "" for a mass noun
    german: str
    german_plural: str
    gender: str  # m, f or n
    classes: FrozenSet[str]


@dataclass(frozen=True)
class Adjective:
    english: str
    german: str
    stem: str
    rank: int
    classes: FrozenSet[str]


@dataclass(frozen=True)
class Verb:
    english: str
    english_past: str
    german: str  # the infinitive without its separable prefix
    prefix: str
    third_person: str  # of the present tense where the vowel changes, else ""
    participle: str
    auxiliary: str
    frame: str
    subject: FrozenSet[str]
    object: FrozenSet[str]
    trait: str


@dataclass(frozen=True)
class Modal:
    english: str
    english_past: str  # "" where the past is not used
    german: str
    present: Tuple[str, ...]
    preterite: Tuple[str, ...]


@dataclass(frozen=True)
class Preposition:
    english: str
    german: str
    case: str  # acc or dat


@dataclass(frozen=True)
class Adverb:
    """A time expression or a conjunction: one English and one German wording, and the tense it goes with."""

    english: str
    german: str
    tense: str


Row = TypeVar("Row")


def _read(table: str, build: Callable[..., Row]) -> List[Row]:
    rows = (re.split(r"\s{2,}", line.strip()) for line in table.strip().splitlines())
    return [build(*("" if cell == "-" else cell for cell in row)) for row in rows]


def _classes(names: str) -> FrozenSet[str]:
    expanded = ",".join(tables.GROUPS.get(name, name) for name in names.split(","))
    return frozenset(filter(None, expanded.split(",")))


def _noun(english: str, plural: str, german: str, german_plural: str, classes: str) -> Noun:
    article, word = german.split()
    return Noun(
        english, plural, word, german_plural, {"der": "m", "die": "f", "das": "n"}[article], _classes(classes)
    )


def _adjective(english: str, german: str, stem: str, rank: str, classes: str) -> Adjective:
    return Adjective(english, german, stem or german, int(rank), _classes(classes))


def _verb(english: str, past: str, german: str, third_person: str, perfect: str, *rest: str) -> Verb:
    frame, subject, objects, trait = rest
    prefix, _, infinitive = german.rpartition("|")
    auxiliary, participle = perfect.split()
    auxiliary = {"hat": "haben", "ist": "sein"}[auxiliary]
    classes = _classes(subject or "person"), _classes(objects)
    return Verb(
        english, past, infinitive, prefix, third_person, participle, auxiliary, frame, *classes, trait
    )


def _clause_verb(*row: str) -> Verb:
    return _verb(*row, "", "", "")


def _modal(english: str, past: str, german: str, present: str, preterite: str) -> Modal:
    return Modal(english, past, german, tuple(present.split()), tuple(preterite.split()))


def _place(
    noun: str, english: str, german: str, to_english: str, to_german: str
) -> Tuple[str, Preposition, Preposition]:
    direction, _, case = to_german.partition("+")
    return noun, Preposition(english, german, "dat"), Preposition(to_english, direction, case)


NOUNS: List[Noun] = _read(tables.NOUNS, _noun)
ADJECTIVES: List[Adjective] = _read(tables.ADJECTIVES, _adjective)
VERBS: List[Verb] = _read(tables.VERBS, _verb)
CLAUSE_VERBS: List[Verb] = _read(tables.CLAUSE_VERBS, _clause_verb)
MODALS: List[Modal] = _read(tables.MODALS, _modal)
TIMES: List[Adverb] = _read(tables.TIMES, Adverb)
CONJUNCTIONS: List[Adverb] = _read(tables.CONJUNCTIONS, Adverb)
PLACES: List[Tuple[str, Preposition, Preposition]] = _read(tables.PLACES, _place)
NOUN_BY_NAME: Dict[str, Noun] = {noun.english: noun for noun in NOUNS}


def nouns_of(classes: FrozenSet[str]) -> List[Noun]:
    """The nouns that belong to at least one of the classes."""
    return [noun for noun in NOUNS if noun.classes & classes]


def complement(verb: Verb) -> Optional[Preposition]:
    """The preposition a verb's object stands with (wait *for*, warten *auf*), or None."""
    if ":" not in verb.frame:
        return None
    english, german = verb.frame.split(":")
    preposition, case = german.split("+")
    return Preposition(english, preposition, case)
