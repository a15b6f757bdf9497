"""Draws meanings at random, and only such as have one natural wording in either language."""

from dataclasses import dataclass, replace
from random import Random
from typing import Optional, Sequence, Tuple, TypeVar

from demo_grammar.lexicon import (
    ADJECTIVES,
    CLAUSE_VERBS,
    CONJUNCTIONS,
    MODALS,
    NOUN_BY_NAME,
    PLACES,
    TIMES,
    VERBS,
    Adverb,
    Modal,
    Noun,
    Preposition,
    Verb,
    complement,
    nouns_of,
)
from demo_grammar.meaning import (
    POSSESSIVES,
    Argument,
    Clause,
    NounPhrase,
    Pronoun,
    Quality,
    RelativePronoun,
    Sentence,
)

_PRONOUNS = (
    Pronoun(1),
    Pronoun(2),
    Pronoun(3, gender="m"),
    Pronoun(3, gender="f"),
    Pronoun(1, plural=True),
    Pronoun(3, plural=True),
)
_PERSON = frozenset({"person"})
_WHO = Pronoun(3, who=True)

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class _Plan:
    """What a clause is to be like. None leaves the choice to the sampler; chances are between 0 and 1."""

    verbs: Sequence[Verb] = tuple(VERBS)
    subject: Optional[Argument] = None
    past: Optional[bool] = None
    negated: Optional[bool] = None
    time: float = 0.3
    fronting: float = 0.0  # the chance that the time stands first
    place: bool = True
    relative: float = 0.0  # the chance of a relative clause with the subject or the object


class Sampler:
    """Draws sentences from one seeded random generator; the same seed gives the same sentences in the same order.

    Args:
        seed: the seed of the generator.
    """

    def __init__(self, seed: int):
        self._random = Random(seed)

    def sentence(self) -> Sentence:
        """Draw a sentence."""
        kind = self._pick(("plain", "adverbial", "content", "question"), (36, 26, 20, 18))
        if kind == "plain":
            return Sentence(self._clause(_Plan(time=0.6, fronting=0.5, relative=0.3)))
        if kind == "adverbial":
            return self._with_adverbial()
        return Sentence(self._with_content()) if kind == "content" else self._question()

    def _with_adverbial(self) -> Sentence:
        conjunction = self._pick(CONJUNCTIONS)
        past = self._chance(0.5) if conjunction.tense in ("any", "same") else conjunction.tense == "past"
        main_past = self._chance(0.5) if conjunction.tense == "any" else past
        # No time is fronted: the subordinate clause may stand there already.
        main = self._clause(_Plan(past=main_past, time=0.15))
        negated = False if conjunction.english == "before" else None
        adverbial = self._clause(_Plan(past=past, negated=negated))
        return Sentence(main, "", conjunction, adverbial, adverbial_first=self._chance(0.5))

    def _with_content(self) -> Clause:
        verb = self._pick(CLAUSE_VERBS)
        negated = self._chance(0.25)
        if verb.english == "know" and negated:
            verb = replace(verb, frame="whether")
        subject = self._person()
        content = self._clause(_Plan(relative=0.15))
        return Clause(subject, verb, past=self._chance(0.4), negated=negated, content=content)

    def _question(self) -> Sentence:
        interrogative = self._pick(("yes/no", "who", "when", "why", "where", "where to"), (6, 2, 2, 2, 2, 1))
        verbs = {
            "who": [verb for verb in VERBS if "person" in verb.subject],
            "where": [verb for verb in VERBS if verb.trait == "place"],
            "where to": [verb for verb in VERBS if verb.frame == "motion"],
        }.get(interrogative, VERBS)
        plan = _Plan(
            verbs,
            _WHO if interrogative == "who" else None,
            negated=interrogative == "why" and self._chance(0.4),
            time=0.0 if interrogative == "when" else 0.35,
            place=not interrogative.startswith("where"),
        )
        return Sentence(self._clause(plan), interrogative)

    def _clause(self, plan: _Plan) -> Clause:
        verb = self._pick(plan.verbs)
        past = self._chance(0.45) if plan.past is None else plan.past
        negated = self._chance(0.2) if plan.negated is None else plan.negated
        # "nicht" would follow a relative clause of the object, far from what it negates.
        relative = self._pick(("subject", "subject" if negated else "object")) if self._chance(plan.relative) else ""
        subject = plan.subject or self._subject(verb, negated, relative == "subject")
        target = self._object(verb, subject, negated, relative == "object")
        time = self._time(past) if self._chance(plan.time) else None
        first = time is not None and self._chance(plan.fronting)
        place = self._place(verb) if plan.place else None
        if isinstance(target, NounPhrase) and target.relative is not None:
            # What followed the relative clause would seem a part of it.
            place, time = None, time if first else None
        return Clause(
            subject,
            verb,
            past,
            self._modal(verb, past),
            negated,
            target,
            recipient=self._person(True, negated, other=subject) if verb.frame == "acc+dat" else None,
            predicate=self._predicate(subject) if verb.frame == "copula" else None,
            place=place,
            time=time,
            time_first=first,
        )

    def _subject(self, verb: Verb, negated: bool, relative: bool) -> Argument:
        noun = self._pick(nouns_of(verb.subject))
        if relative:
            return self._with_relative(noun)
        if "person" in verb.subject and self._chance(0.35):
            return self._pick(_PRONOUNS)
        phrase = self._noun_phrase(noun)
        may_deny = (
            not negated and phrase.number is None and not phrase.qualities and phrase.noun.english_plural
        )
        return replace(phrase, determiner="no") if may_deny and self._chance(0.06) else phrase

    def _object(self, verb: Verb, subject: Argument, negated: bool, relative: bool) -> Optional[Argument]:
        if not verb.object or verb.frame == "motion":
            return None
        if "person" in verb.object and self._chance(0.3):
            return self._person(True, negated, other=subject)
        nouns = [noun for noun in nouns_of(verb.object) if noun != getattr(subject, "noun", None)]
        noun = self._pick(nouns)
        if relative and verb.frame in ("acc", "dat"):
            return self._with_relative(noun)
        return self._noun_phrase(noun, definite=negated and complement(verb) is not None, plain=negated)

    def _person(
        self, definite: bool = False, plain: bool = False, other: Optional[Argument] = None
    ) -> Argument:
        """A person as a noun phrase or a pronoun, and not the same as the other."""
        if self._chance(0.4):
            taken = other.person if isinstance(other, Pronoun) and not other.who and other.person < 3 else 0
            return self._pick([pronoun for pronoun in _PRONOUNS if pronoun.person != taken])
        nouns = [noun for noun in nouns_of(_PERSON) if noun != getattr(other, "noun", None)]
        return self._noun_phrase(self._pick(nouns), definite, plain)

    def _noun_phrase(self, noun: Noun, definite: bool = False, plain: bool = False) -> NounPhrase:
        """A noun phrase; a plain one has nothing that makes the scope of a negation unclear: numbers, "every", "many"."""
        plural = bool(noun.english_plural) and self._chance(0.3)
        choices = {"the": 10, "this": 1, self._pick(POSSESSIVES): 4}
        if not definite and plural:
            choices.update({"": 5} if plain else {"": 3, "many": 1, "some": 1})
        elif not definite:
            choices.update({"a": 6} if noun.english_plural else {"": 6})
        if not plural and not plain and noun.english_plural:
            choices["every"] = 1
        determiner = self._pick(tuple(choices), tuple(choices.values()))
        countable = plural and not plain and determiner not in ("many", "some")
        number = self._number() if countable and self._chance(0.3) else None
        return NounPhrase(noun, plural, determiner, self._qualities(noun), number)

    def _number(self) -> int:
        """2 to 999, small numbers more often; none that ends in 01, which is inflected like an article."""
        upper = self._pick((12, 99, 999), (6, 3, 1))
        number = self._random.randint(2, upper)
        return number + 1 if number % 100 == 1 else number

    def _qualities(self, noun: Noun) -> Tuple[Quality, ...]:
        fitting = [adjective for adjective in ADJECTIVES if adjective.classes & noun.classes]
        count = min(self._pick((0, 1, 2), (58, 36, 6)), len({adjective.rank for adjective in fitting}))
        first = self._pick(fitting) if count else None
        if first is None:
            return ()
        if count == 1:
            return (Quality(first, very=first.rank < 3 and self._chance(0.12)),)
        second = self._pick([adjective for adjective in fitting if adjective.rank != first.rank])
        return tuple(Quality(adjective) for adjective in sorted((first, second), key=lambda it: it.rank))

    def _predicate(self, subject: Argument) -> Quality:
        classes = _PERSON if isinstance(subject, Pronoun) else subject.noun.classes
        said = [it.adjective for it in subject.qualities] if isinstance(subject, NounPhrase) else []
        fitting = [it for it in ADJECTIVES if it.classes & classes and it not in said]
        adjective = self._pick(fitting)
        return Quality(adjective, very=adjective.rank < 3 and self._chance(0.3))

    def _with_relative(self, noun: Noun) -> NounPhrase:
        plural = bool(noun.english_plural) and self._chance(0.3)
        determiner = "the" if plural or not noun.english_plural else self._pick(("the", "a"), (3, 1))
        pronoun = RelativePronoun(noun, plural)
        relative = self._relative_with_object(pronoun) if self._chance(0.5) else None
        return NounPhrase(noun, plural, determiner, relative=relative or self._relative_with_subject(pronoun))

    def _relative_with_subject(self, pronoun: RelativePronoun) -> Optional[Clause]:
        verbs = [
            it for it in VERBS if it.subject & pronoun.noun.classes and it.frame not in ("motion", "acc+dat")
        ]
        if not verbs:
            return self._relative_with_object(pronoun)
        return self._clause(_Plan(verbs, pronoun, time=0.0, place=False))

    def _relative_with_object(self, pronoun: RelativePronoun) -> Optional[Clause]:
        verbs = [it for it in VERBS if it.object & pronoun.noun.classes and it.frame in ("acc", "dat")]
        if not verbs:
            return None
        clause = self._clause(_Plan([self._pick(verbs)], time=0.0, place=False, negated=False))
        return replace(clause, object=pronoun)

    def _modal(self, verb: Verb, past: bool) -> Optional[Modal]:
        if verb.frame == "copula" or verb.trait == "state" or not self._chance(0.3):
            return None
        return self._pick([modal for modal in MODALS if modal.english_past or not past])

    def _time(self, past: bool) -> Adverb:
        return self._pick([time for time in TIMES if time.tense in ("any", "past" if past else "present")])

    def _place(self, verb: Verb) -> Optional[Tuple[Preposition, NounPhrase]]:
        if verb.frame != "motion" and not (verb.trait == "place" and self._chance(0.35)):
            return None
        name, where, whither = self._pick(PLACES)
        noun = NOUN_BY_NAME[name]
        determiner = self._pick(("the", self._pick(POSSESSIVES), "a"), (8, 1, 1))
        qualities = self._qualities(noun)[:1] if self._chance(0.5) else ()
        return (whither if verb.frame == "motion" else where), NounPhrase(noun, False, determiner, qualities)

    def _pick(self, choices: Sequence[Choice], weights: Optional[Sequence[int]] = None) -> Choice:
        return self._random.choices(choices, weights)[0]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability
