"""German inflection: articles, adjectives, nouns, pronouns and finite verbs.

Genders are m, f and n; plurals share one column whatever the gender. Cases are nom, acc and dat.
"""

from typing import Dict, List, Sequence

from demo_grammar.lexicon import Noun, Verb
from demo_grammar.meaning import POSSESSIVES, NounPhrase, Pronoun, RelativePronoun
from demo_grammar.numbers import german_number
from demo_grammar.tables import PRESENT


def _endings(nominative: str, accusative: str, dative: str) -> Dict[str, Dict[str, str]]:
    rows = {"nom": nominative, "acc": accusative, "dat": dative}
    return {case: dict(zip(("m", "f", "n", "pl"), row.split(","))) for case, row in rows.items()}


_ARTICLE = _endings("der,die,das,die", "den,die,das,die", "dem,der,dem,den")
_STRONG = _endings("er,e,es,e", "en,e,es,e", "em,er,em,en")
_WEAK = _endings("e,e,e,en", "en,e,e,en", "en,en,en,en")
_MIXED = _endings("er,e,es,en", "en,e,es,en", "en,en,en,en")
_INDEFINITE = _endings(",e,,e", "en,e,,e", "em,er,em,en")  # ein, kein, mein

# Determiners that take the strong endings, with what follows them: weak adjectives, or strong ones.
_STEMS = {"this": "dies", "every": "jed", "many": "viel", "some": "einig"}
_INDEFINITE_STEMS = dict(
    zip(POSSESSIVES, ("mein", "dein", "sein", "ihr", "unser", "ihr")), a="ein", no="kein"
)

_PERSONAL = {
    (1, False, ""): {"nom": "ich", "acc": "mich", "dat": "mir"},
    (2, False, ""): {"nom": "du", "acc": "dich", "dat": "dir"},
    (3, False, "m"): {"nom": "er", "acc": "ihn", "dat": "ihm"},
    (3, False, "f"): {"nom": "sie", "acc": "sie", "dat": "ihr"},
    (1, True, ""): {"nom": "wir", "acc": "uns", "dat": "uns"},
    (3, True, ""): {"nom": "sie", "acc": "sie", "dat": "ihnen"},
}


def noun_words(phrase: NounPhrase, case: str) -> List[str]:
    """Determiner, number, adjectives and noun in one case, without a relative clause."""
    column = "pl" if phrase.plural else phrase.noun.gender
    words = [_determiner(phrase.determiner, column, case)]
    if phrase.number is not None:
        words.append(german_number(phrase.number))
    ending = _adjective_endings(phrase.determiner)[case][column]
    for quality in phrase.qualities:
        words += ["sehr"] * quality.very + [quality.adjective.stem + ending]
    return [*words, _noun(phrase.noun, phrase.plural, case)]


def _determiner(determiner: str, column: str, case: str) -> str:
    if not determiner:
        return ""
    if determiner == "the":
        return _ARTICLE[case][column]
    if determiner in _STEMS:
        return _STEMS[determiner] + _STRONG[case][column]
    return _INDEFINITE_STEMS[determiner] + _INDEFINITE[case][column]


def _adjective_endings(determiner: str) -> Dict[str, Dict[str, str]]:
    if determiner in ("the", "this", "every"):
        return _WEAK
    return _MIXED if determiner in _INDEFINITE_STEMS else _STRONG


def _noun(noun: Noun, plural: bool, case: str) -> str:
    if not plural:
        return noun.german_plural if "weak" in noun.classes and case != "nom" else noun.german
    if case == "dat" and not noun.german_plural.endswith(("n", "s")):
        return noun.german_plural + "n"
    return noun.german_plural


def personal_pronoun(pronoun: Pronoun, case: str) -> str:
    """ich, mich, mir ...; the interrogative "wer" is only ever a subject."""
    return "wer" if pronoun.who else _PERSONAL[pronoun.person, pronoun.plural, pronoun.gender][case]


def relative_pronoun(pronoun: RelativePronoun, case: str) -> str:
    """The article's forms, but "denen" in the dative plural."""
    form = _ARTICLE[case]["pl" if pronoun.plural else pronoun.noun.gender]
    return "denen" if pronoun.plural and case == "dat" else form


def present(verb: Verb, person: int, plural: bool) -> str:
    """The present tense of a verb without its separable prefix."""
    if verb.german in PRESENT:
        return finite_form(PRESENT[verb.german], person, plural)
    if plural:
        return verb.german
    stem = verb.german[:-2] if verb.german.endswith("en") else verb.german[:-1]
    if person == 1:
        return stem + "e"
    if verb.third_person and person == 3:
        return verb.third_person
    # An e keeps apart what could not be spoken together (arbeit-est); after an s, that of -st is swallowed (lies-t).
    link = "e" if stem.endswith(("t", "d", "chn", "ffn")) and not verb.third_person else ""
    stem = verb.third_person[:-1] or stem
    if person == 3:
        return stem + link + "t"
    return stem + ("t" if stem.endswith(("s", "ß", "z")) else link + "st")


def finite_form(forms: Sequence[str], person: int, plural: bool) -> str:
    """Choose from the first, second, third person singular and the plural, as the lexicon lists irregular verbs."""
    return forms[3 if plural else person - 1]
