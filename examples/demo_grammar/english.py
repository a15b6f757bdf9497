"""Words a meaning in English."""

import re
from typing import List, Tuple

from demo_grammar.lexicon import complement
from demo_grammar.meaning import (
    Argument,
    Clause,
    NounPhrase,
    Pronoun,
    Quality,
    RelativePronoun,
    Sentence,
    with_determiner,
    without_article,
)
from demo_grammar.numbers import english_number

_SUBJECT = {(1, False): "I", (2, False): "you", (1, True): "we", (3, True): "they"}
_OBJECT = {(1, False): "me", (2, False): "you", (1, True): "us", (3, True): "them"}
_SUBJECT_SINGULAR = {"m": "he", "f": "she"}
_OBJECT_SINGULAR = {"m": "him", "f": "her"}


def english_sentence(sentence: Sentence) -> str:
    """Word a sentence in English, with its capital and its full stop or question mark."""
    if sentence.interrogative:
        words = _question(sentence.clause, sentence.interrogative)
    else:
        words = _statement(sentence.clause)
    if sentence.adverbial is not None and sentence.conjunction is not None:
        adverbial = [sentence.conjunction.english] + _statement(sentence.adverbial)
        if sentence.adverbial_first:
            words = adverbial + [","] + words
        else:
            words = words + adverbial
    text = " ".join(filter(None, words)).replace(" ,", ",").replace("_", " ")
    return text[0].upper() + text[1:] + ("?" if sentence.interrogative else ".")


def _statement(clause: Clause) -> List[str]:
    auxiliary, verb = _verb_group(clause, clause.negated)
    negation = ["not"] if clause.negated else []
    if clause.negated and auxiliary == "can":
        auxiliary, negation = "cannot", []
    words = [*_argument(clause.subject, True), auxiliary, *negation, *_predicate(clause, verb)]
    if clause.time is None:
        return words
    return [clause.time.english] + words if clause.time_first else words + [clause.time.english]


def _question(clause: Clause, interrogative: str) -> List[str]:
    if interrogative == "who":
        return _statement(clause)
    auxiliary, verb = _verb_group(clause, True)
    opening = {"yes/no": "", "where to": "where"}.get(interrogative, interrogative)
    negation = "not" if clause.negated else ""
    words = [opening, auxiliary, *_argument(clause.subject, True), negation, *_predicate(clause, verb)]
    return words + ([clause.time.english] if clause.time is not None else [])


def _predicate(clause: Clause, verb: str) -> List[str]:
    """Everything after the auxiliary: the verb, its objects, the place, the clause after "that"."""
    verb, plus, particle = verb.partition("+")
    words = [verb]
    preposition = complement(clause.verb)
    if preposition is not None:
        words.append(preposition.english)
    target = clause.object
    if target is not None and not isinstance(target, RelativePronoun):
        if (
            clause.negated
            and isinstance(target, NounPhrase)
            and target.determiner == ""
            and without_article(target)
        ):
            target = with_determiner(target, "any")
        phrase = _argument(target, False)
        words += phrase + [particle] if isinstance(target, Pronoun) else [particle, *phrase]
    elif plus:
        words.append(particle)
    if clause.recipient is not None:
        words += ["to", *_argument(clause.recipient, False)]
    if clause.predicate is not None:
        words.append(_quality(clause.predicate))
    if clause.place is not None:
        words += [clause.place[0].english, *_argument(clause.place[1], False)]
    if clause.content is not None:
        words += [clause.verb.frame, *_statement(clause.content)]
    return words


def _verb_group(clause: Clause, split: bool) -> Tuple[str, str]:
    """The auxiliary (or "") and the verb; negations and questions split them apart, if need be with "do"."""
    person, plural = agreement(clause.subject)
    verb = clause.verb.english
    past_form = clause.verb.english_past + verb[len(_head(verb)) :]
    if clause.modal is not None:
        modal = clause.modal.english_past if clause.past else clause.modal.english
        if " " not in modal:
            return modal, verb
        head, rest = modal.split(" ", 1)
        if clause.modal.english.startswith("be "):
            return _be(person, plural, clause.past), f"{rest} {verb}"
        past_form, verb = f"{head} {rest} {verb}", f"{clause.modal.english} {verb}"
    if verb == "be":
        return _be(person, plural, clause.past), ""
    third = person == 3 and not plural
    if split:
        return ("did" if clause.past else "does" if third else "do"), verb
    if clause.past:
        return "", past_form
    return "", _third_person(verb) if third else verb


def _be(person: int, plural: bool, past: bool) -> str:
    if plural or person == 2:
        return "were" if past else "are"
    if past:
        return "was"
    return "am" if person == 1 else "is"


def _third_person(verb: str) -> str:
    word = _head(verb)
    rest = verb[len(word) :]
    if word == "have":
        word = "has"
    elif word.endswith(("s", "x", "z", "ch", "sh", "o")):
        word += "es"
    elif word.endswith("y") and word[-2] not in "aeiou":
        word = word[:-1] + "ies"
    else:
        word += "s"
    return word + rest


def _head(verb: str) -> str:
    """The verb itself, without particles and infinitives after it."""
    return re.split("[_+ ]", verb, maxsplit=1)[0]


def agreement(subject: Argument) -> Tuple[int, bool]:
    """The person (1, 2, 3) and number (True: plural) a verb takes after the subject."""
    return (subject.person, subject.plural) if isinstance(subject, Pronoun) else (3, subject.plural)


def _argument(argument: Argument, subject: bool) -> List[str]:
    if isinstance(argument, Pronoun):
        if argument.who:
            return ["who"]
        if argument.gender:
            return [(_SUBJECT_SINGULAR if subject else _OBJECT_SINGULAR)[argument.gender]]
        return [(_SUBJECT if subject else _OBJECT)[argument.person, argument.plural]]
    if isinstance(argument, RelativePronoun):
        return [_relative_pronoun(argument, subject)]
    return _noun_phrase(argument)


def _relative_pronoun(pronoun: RelativePronoun, subject: bool) -> str:
    if "person" not in pronoun.noun.classes:
        return "which"
    return "who" if subject else "whom"


def _noun_phrase(phrase: NounPhrase) -> List[str]:
    determiner = (
        {"this": "these"}.get(phrase.determiner, phrase.determiner) if phrase.plural else phrase.determiner
    )
    words = [_quality(quality) for quality in phrase.qualities]
    words.append(phrase.noun.english_plural if phrase.plural else phrase.noun.english)
    if phrase.number is not None:
        words.insert(0, english_number(phrase.number))
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    words = [determiner, *words]
    return words + _relative_clause(phrase.relative) if phrase.relative is not None else words


def _relative_clause(clause: Clause) -> List[str]:
    if isinstance(clause.object, RelativePronoun):
        return [_relative_pronoun(clause.object, False), *_statement(clause)]
    return _statement(clause)


def _quality(quality: Quality) -> str:
    return ("very " if quality.very else "") + quality.adjective.english
