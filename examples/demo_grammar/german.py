"""Words a meaning in German.

A German clause is a frame of two brackets: the finite verb, and at its end the participle, the infinitive or the
separable prefix. Statements put one phrase before the finite verb, questions put the interrogative or nothing there,
subordinate clauses move the finite verb to the very end.
"""

import re
from typing import List, Tuple

from demo_grammar.english import agreement
from demo_grammar.inflection import (
    finite_form,
    noun_words,
    personal_pronoun,
    present,
    relative_pronoun,
)
from demo_grammar.lexicon import Preposition, complement
from demo_grammar.meaning import (
    Argument,
    Clause,
    NounPhrase,
    Pronoun,
    RelativePronoun,
    Sentence,
    with_determiner,
    without_article,
)
from demo_grammar.tables import PRESENT, PRETERITE

_INTERROGATIVES = {"when": "wann", "why": "warum", "where": "wo", "where to": "wohin"}
_CONTENT = {"that": "dass", "whether": "ob"}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}


def german_sentence(sentence: Sentence) -> str:
    """Word a sentence in German, with its capital, its commas and its full stop or question mark."""
    clause, interrogative = sentence.clause, sentence.interrogative
    if sentence.adverbial is not None and sentence.conjunction is not None:
        adverbial = _subordinate(sentence.conjunction.german, sentence.adverbial)
        if sentence.adverbial_first:
            words = [*adverbial, ",", *_finite_first(clause)]
        else:
            words = [*_statement(clause), ",", *adverbial]
    elif interrogative == "who":
        words = _statement(clause)
    elif interrogative:
        words = [_INTERROGATIVES.get(interrogative, ""), *_finite_first(clause)]
    else:
        words = _statement(clause)
    return _punctuate(words, "?" if interrogative else ".")


def _punctuate(words: List[str], end: str) -> str:
    text = " ".join(filter(None, words)) + " " + end
    text = re.sub(r"[ ,]*,[ ,]*", ", ", text)
    text = re.sub(r"[ ,]*([.?])$", r"\1", text)
    return text[0].upper() + text[1:]


def _statement(clause: Clause) -> List[str]:
    """Verb second: the time if it comes first, else the subject, stands before the finite verb."""
    if clause.time is not None and clause.time_first:
        return [clause.time.german, *_finite_first(clause)]
    finite, right = _verb_group(clause)
    return [*_argument(clause.subject, "nom"), finite, *_middle(clause), *right, *_content(clause)]


def _finite_first(clause: Clause) -> List[str]:
    """The finite verb, then the subject: after a fronted phrase, and in questions."""
    finite, right = _verb_group(clause)
    return [finite, *_argument(clause.subject, "nom"), *_middle(clause), *right, *_content(clause)]


def _subordinate(conjunction: str, clause: Clause) -> List[str]:
    """Verb last; a separable prefix is joined to its finite verb again."""
    finite, right = _verb_group(clause)
    if clause.verb.prefix and right == [clause.verb.prefix]:
        finite, right = clause.verb.prefix + finite, []
    subject = [] if isinstance(clause.subject, RelativePronoun) else _argument(clause.subject, "nom")
    return [conjunction, *subject, *_middle(clause), *right, finite, *_content(clause)]


def _verb_group(clause: Clause) -> Tuple[str, List[str]]:
    """The finite verb and the right bracket of the main clause."""
    verb = clause.verb
    person, plural = agreement(clause.subject)
    if clause.modal is not None:
        forms = clause.modal.preterite if clause.past else clause.modal.present
        return finite_form(forms, person, plural), [verb.prefix + verb.german]
    if not clause.past:
        return present(verb, person, plural), [verb.prefix] if verb.prefix else []
    if verb.german in PRETERITE:
        return finite_form(PRETERITE[verb.german], person, plural), []
    return finite_form(PRESENT[verb.auxiliary], person, plural), [verb.participle]


def _middle(clause: Clause) -> List[str]:
    """Between the brackets.

    The order: pronouns, definite objects, time, indefinite objects, "nicht", prepositional phrases, predicate.
    """
    pronouns: List[str] = []
    definite: List[str] = []
    indefinite: List[str] = []
    late: List[str] = []
    preposition = complement(clause.verb)
    negation = ["nicht"] if clause.negated else []
    for argument, case in _objects(clause):
        if preposition is not None:
            late += _prepositional(preposition, argument)
        elif isinstance(argument, Pronoun):
            pronouns.append(personal_pronoun(argument, case))
        elif not isinstance(argument, NounPhrase):
            continue  # the relative pronoun stands at the head of its clause
        elif argument.definite:
            definite += _argument(argument, case)
        else:
            if negation and without_article(argument):
                argument, negation = with_determiner(argument, "no"), []
            indefinite += _argument(argument, case)
    time = [clause.time.german] if clause.time is not None and not clause.time_first else []
    if clause.place is not None:
        late += _prepositional(*clause.place)
    if clause.predicate is not None:
        late += ["sehr"] * clause.predicate.very + [clause.predicate.adjective.german]
    return [*pronouns, *definite, *time, *indefinite, *negation, *late]


def _objects(clause: Clause) -> List[Tuple[Argument, str]]:
    case = "dat" if clause.verb.frame == "dat" else "acc"
    objects = [(clause.recipient, "dat"), (clause.object, case)]
    return [(argument, case) for argument, case in objects if argument is not None]


def _argument(argument: Argument, case: str) -> List[str]:
    if isinstance(argument, Pronoun):
        return [personal_pronoun(argument, case)]
    if isinstance(argument, RelativePronoun):
        return [relative_pronoun(argument, case)]
    words = noun_words(argument, case)
    return (
        [*words, ",", *_relative_clause(argument.relative), ","] if argument.relative is not None else words
    )


def _relative_clause(clause: Clause) -> List[str]:
    if isinstance(clause.subject, RelativePronoun):
        return _subordinate(relative_pronoun(clause.subject, "nom"), clause)
    ((pronoun, case),) = [(it, case) for it, case in _objects(clause) if isinstance(it, RelativePronoun)]
    return _subordinate(relative_pronoun(pronoun, case), clause)


def _prepositional(preposition: Preposition, argument: Argument) -> List[str]:
    words = _argument(argument, preposition.case)
    contraction = _CONTRACTIONS.get((preposition.german, words[0]))
    return [contraction, *words[1:]] if contraction else [preposition.german, *words]


def _content(clause: Clause) -> List[str]:
    if clause.content is None:
        return []
    return [",", *_subordinate(_CONTENT[clause.verb.frame], clause.content)]
