"""What a sentence of the demonstration grammar says, before it is worded in either language."""

from dataclasses import dataclass, replace
from typing import Optional, Tuple, Union

from demo_grammar.lexicon import Adjective, Adverb, Modal, Noun, Preposition, Verb

# Determiners are these, "a", "no", and "many", "some" or none for plurals.
DEFINITE = ("the", "this", "every")
POSSESSIVES = ("my", "your", "his", "her", "our", "their")


@dataclass(frozen=True)
class Quality:
    """An adjective, with or without "very"."""

    adjective: Adjective
    very: bool = False


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun, or "who" as the subject of a question; gender is m or f in the third person singular."""

    person: int
    plural: bool = False
    gender: str = ""
    who: bool = False


@dataclass(frozen=True)
class RelativePronoun:
    """Stands for the noun of the noun phrase that the relative clause belongs to."""

    noun: Noun
    plural: bool


@dataclass(frozen=True)
class NounPhrase:
    noun: Noun
    plural: bool = False
    determiner: str = "the"
    qualities: Tuple[Quality, ...] = ()
    number: Optional[int] = None
    relative: Optional["Clause"] = None

    @property
    def definite(self) -> bool:
        return self.determiner in DEFINITE + POSSESSIVES


Argument = Union[NounPhrase, Pronoun, RelativePronoun]


@dataclass(frozen=True)
class Clause:
    """A subject and what is said of it. The verb's frame says which of the other places are filled."""

    subject: Argument
    verb: Verb
    past: bool = False
    modal: Optional[Modal] = None
    negated: bool = False
    object: Optional[Argument] = None
    recipient: Optional[Argument] = None
    predicate: Optional[Quality] = None
    place: Optional[Tuple[Preposition, NounPhrase]] = None
    time: Optional[Adverb] = None
    time_first: bool = False
    content: Optional["Clause"] = None  # the clause after "that" or "whether", as verb.frame says


@dataclass(frozen=True)
class Sentence:
    """A clause as statement or question, perhaps with an adverbial clause before or after it.

    interrogative: "" for a statement, "yes/no", "who", "when", "why", "where" or "where to" for a question.
    """

    clause: Clause
    interrogative: str = ""
    conjunction: Optional[Adverb] = None
    adverbial: Optional[Clause] = None
    adverbial_first: bool = False


def without_article(phrase: NounPhrase) -> bool:
    """Whether German words a negation in the phrase itself: "not ... a book" is "kein Buch"."""
    return phrase.determiner in ("", "a") and phrase.number is None


def with_determiner(phrase: NounPhrase, determiner: str) -> NounPhrase:
    return replace(phrase, determiner=determiner)
