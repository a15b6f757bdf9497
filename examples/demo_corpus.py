"""Command ``luna-demo-corpus``: write a small English-German corpus of sentence pairs for demonstrations.

The sentences come from a grammar that forms each phrase in both languages at once. The German sentences have
the features that make translation from English hard. Nouns have gender, number and case, and adjectives have
weak and strong endings. The verb moves to the end of subordinate clauses, and before the subject if a time
comes first. Some verbs are separable, and auxiliary and participle enclose the rest of the clause.

No sentence occurs twice. The sentences of the test and validation sets do not occur elsewhere, in either
language. They are drawn first, so that they do not depend on the size of the training set.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from luna_fairseq.commands.arguments import CommandParser, random_seed
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import replacing
from luna_fairseq.progress import progress

PROGRAM = "luna-demo-corpus"
# If a pair needs more draws, the grammar has hardly any new sentences left.
MAX_DRAWS_PER_PAIR = 50

Pair = Tuple[str, str]

GROUPS = {"living": ("person", "animal"), "goods": ("text", "food", "thing", "device")}
# Each line has a kind and entries: English noun, its plural if -s is not enough, German noun, its plural,
# gender (* for weak nouns such as "den Jungen").
NOUNS = """
person man:men:Mann:Männer:m woman:women:Frau:Frauen:f child:children:Kind:Kinder:n boy::Junge:Jungen:m*
person girl::Mädchen:Mädchen:n teacher::Lehrer:Lehrer:m doctor::Arzt:Ärzte:m student::Student:Studenten:m*
person neighbour::Nachbar:Nachbarn:m* friend::Freund:Freunde:m mother::Mutter:Mütter:f guest::Gast:Gäste:m
person brother::Bruder:Brüder:m sister::Schwester:Schwestern:f aunt::Tante:Tanten:f
person colleague::Kollege:Kollegen:m*
animal dog::Hund:Hunde:m cat::Katze:Katzen:f horse::Pferd:Pferde:n bird::Vogel:Vögel:m cow::Kuh:Kühe:f
animal mouse:mice:Maus:Mäuse:f bear::Bär:Bären:m* pig::Schwein:Schweine:n
text book::Buch:Bücher:n letter::Brief:Briefe:m newspaper::Zeitung:Zeitungen:f poem::Gedicht:Gedichte:n
food apple::Apfel:Äpfel:m cake::Kuchen:Kuchen:m egg::Ei:Eier:n potato:potatoes:Kartoffel:Kartoffeln:f
food pear::Birne:Birnen:f soup::Suppe:Suppen:f sausage::Wurst:Würste:f
thing hat::Hut:Hüte:m shirt::Hemd:Hemden:n jacket::Jacke:Jacken:f key::Schlüssel:Schlüssel:m car::Auto:Autos:n
thing picture::Bild:Bilder:n flower::Blume:Blumen:f ball::Ball:Bälle:m bag::Tasche:Taschen:f
thing knife:knives:Messer:Messer:n gift::Geschenk:Geschenke:n bottle::Flasche:Flaschen:f chair::Stuhl:Stühle:m
device lamp::Lampe:Lampen:f radio::Radio:Radios:n machine::Maschine:Maschinen:f computer::Computer:Computer:m
room kitchen::Küche:Küchen:f garden::Garten:Gärten:m house::Haus:Häuser:n church:churches:Kirche:Kirchen:f
room school::Schule:Schulen:f hotel::Hotel:Hotels:n forest::Wald:Wälder:m office::Büro:Büros:n
spot station::Bahnhof:Bahnhöfe:m lake::See:Seen:m river::Fluss:Flüsse:m bridge::Brücke:Brücken:f
"""
ADJECTIVES = """
living old:alt young:jung small:klein big:groß clever:klug tired:müde hungry:hungrig sick:krank funny:lustig
person rich:reich famous:berühmt friendly:freundlich happy:glücklich
goods,room,spot beautiful:schön new:neu good:gut cheap:billig small:klein
thing,device red:rot green:grün black:schwarz white:weiß heavy:schwer old:alt
text long:lang short:kurz boring:langweilig interesting:interessant
food fresh:frisch warm:warm cold:kalt
room,spot quiet:ruhig big:groß famous:berühmt
"""
# Each line has the kind of the subject, the preposition and case of the object, the kind of the object and
# the place. Its entries are: English verb, past, German verb (a bar after a separable prefix), 3rd person if
# irregular, participle (+ if it takes "sein").
VERBS = """
living - - where sleep:slept:schlafen:schläft:geschlafen sing:sang:singen::gesungen
living - - where fall_asleep:fell_asleep:ein|schlafen:schläft:+eingeschlafen wait:waited:warten::gewartet
person - - where work:worked:arbeiten::gearbeitet laugh:laughed:lachen::gelacht dance:danced:tanzen::getanzt
person - - where sit:sat:sitzen::gesessen watch_TV:watched_TV:fern|sehen:sieht:ferngesehen
living - - - arrive:arrived:an|kommen::+angekommen get_up:got_up:auf|stehen::+aufgestanden
living - - - come_back:came_back:zurück|kommen::+zurückgekommen
living - - whither go:went:gehen::+gegangen run:ran:laufen:läuft:+gelaufen come:came:kommen::+gekommen
living - - whither go_back:went_back:zurück|gehen::+zurückgegangen
living acc living - see:saw:sehen:sieht:gesehen hear:heard:hören::gehört look_for:looked_for:suchen::gesucht
person acc person - visit:visited:besuchen::besucht call:called:an|rufen::angerufen
person acc person - invite:invited:ein|laden:lädt:eingeladen meet:met:treffen:trifft:getroffen
person acc goods where buy:bought:kaufen::gekauft find:found:finden::gefunden
person acc thing,device - sell:sold:verkaufen::verkauft need:needed:brauchen::gebraucht
person acc thing,device - throw_away:threw_away:weg|werfen:wirft:weggeworfen
person acc thing,device - bring_along:brought_along:mit|bringen::mitgebracht
person acc text where read:read:lesen:liest:gelesen write:wrote:schreiben::geschrieben
living acc food where eat:ate:essen:isst:gegessen
person acc device - turn_off:turned_off:aus|schalten::ausgeschaltet repair:repaired:reparieren::repariert
person acc device - turn_on:turned_on:ein|schalten::eingeschaltet
person dat person - help:helped:helfen:hilft:geholfen thank:thanked:danken::gedankt
person dat person - answer:answered:antworten::geantwortet listen_to:listened_to:zu|hören::zugehört
living dat living - follow:followed:folgen::+gefolgt
person dat+acc goods - give:gave:geben:gibt:gegeben show:showed:zeigen::gezeigt
person dat+acc goods - send:sent:schicken::geschickt lend:lent:leihen::geliehen
person dat+acc goods - give_back:gave_back:zurück|geben:gibt:zurückgegeben
person auf+acc living - wait_for:waited_for:warten::gewartet look_after:looked_after:auf|passen::aufgepasst
person mit+dat living where play_with:played_with:spielen::gespielt
person mit+dat living where talk_to:talked_to:sprechen:spricht:gesprochen
living von+dat living - dream_of:dreamed_of:träumen::geträumt
"""
REPORTS = """
person - - - know:knew:wissen::gewusst say:said:sagen::gesagt hope:hoped:hoffen::gehofft
person - - - believe:believed:glauben::geglaubt
"""
PLACES = {
    "where": "in:in:dat:room behind:hinter:dat:room in_front_of:vor:dat:room at:an:dat:spot".split(),
    "whither": "into:in:acc:room to:zu:dat:spot".split(),
}
TIMES = {
    "present": "today:heute now:jetzt this_evening:heute_Abend on_Monday:am_Montag tomorrow:morgen".split(),
    "past": "today:heute yesterday:gestern last_week:letzte_Woche on_Monday:am_Montag".split(),
}
CONJUNCTIONS = "because:weil:any although:obwohl:any while:während:same before:bevor:same if:wenn:present"
MODALS = "can:können should:sollen will:werden".split()
FINITE = {  # irregular verbs: 1st and 3rd person singular, plural
    "haben": "habe hat haben".split(),
    "sein": "bin ist sind".split(),
    "wissen": "weiß weiß wissen".split(),
    "können": "kann kann können".split(),
    "sollen": "soll soll sollen".split(),
    "werden": "werde wird werden".split(),
}
SUBJECTS = "I:ich:1 he:er:3 she:sie:3 we:wir:p they:sie:p".split()
OBJECTS = {
    "acc": "me:mich us:uns him:ihn her:sie them:sie".split(),
    "dat": "me:mir us:uns him:ihm her:ihr them:ihnen".split(),
}
STRONG = {  # endings of "dieser", and of adjectives without an inflected determiner
    "nom": dict(zip("mfnp", "er e es e".split())),
    "acc": dict(zip("mfnp", "en e es e".split())),
    "dat": dict(zip("mfnp", "em er em en".split())),
}
DEFINITE = "the:d this:dies my:mein his:sein her:ihr", "the:d these:dies my:mein our:unser"
SINGULAR = f"the:d every:jed a:ein a:ein no:kein {DEFINITE[0]}".split()
PLURAL = f"no:kein : many:viel two:zwei three:drei five:fünf {DEFINITE[1]}".split()
CONTRACTIONS = "in_dem:im in_das:ins an_dem:am von_dem:vom zu_dem:zum zu_der:zur".split()


class Phrase(NamedTuple):
    """Noun phrase, pronoun or time expression in both languages.

    Attributes:
        english: English words.
        german: German words.
        agreement: form of a verb with this subject: "1" (I), "3" (he) or "p" (they).
        pronoun: True for pronouns.
    """

    english: str
    german: str
    agreement: str = "3"
    pronoun: bool = False


class Clause(NamedTuple):
    """Parts of a clause in both languages, which form a statement, a question or a subordinate clause.

    Attributes:
        subject: subject in both languages.
        time: time expression in both languages, with empty words if the clause has none.
        negated: True if the clause is negated.
        auxiliary: English auxiliary verb, such as "do".
        verb: English verb that follows the auxiliary.
        inflected: inflected English verb that replaces auxiliary and verb, such as "sees". Empty with a modal
            verb.
        rest: English objects and place.
        finite: German finite verb.
        prefix: prefix of a separable German verb.
        early: German pronouns, which precede the time expression.
        late: German objects and place, which follow the time expression.
        end: German participle or infinitive at the end of the clause.
    """

    subject: Phrase
    time: Phrase
    negated: bool
    auxiliary: str
    verb: str
    inflected: str
    rest: str
    finite: str
    prefix: str
    early: str
    late: str
    end: str

    def english(self) -> str:
        """Return the English statement."""
        split = self.negated or not self.inflected
        verb = f"{self.auxiliary} {self._not()} {self.verb}" if split else self.inflected
        return f"{self.subject.english} {verb} {self.rest} {self.time.english}"

    def english_question(self) -> str:
        """Return the English question."""
        rest = f"{self._not()} {self.verb} {self.rest} {self.time.english}"
        return f"{self.auxiliary} {self.subject.english} {rest}"

    def german(self) -> str:
        """Return the German statement, with the verb in second position."""
        return f"{self.subject.german} {self.finite} {self._middle_words()} {self.end or self.prefix}"

    def german_verb_first(self) -> str:
        """Return the German clause with the verb first, as in a question or after an initial adverbial."""
        return f"{self.finite} {self.subject.german} {self._middle_words()} {self.end or self.prefix}"

    def german_verb_final(self) -> str:
        """Return the German subordinate clause, with the finite verb and its prefix at the end."""
        return f"{self.subject.german} {self._middle_words()} {self.end} {self.prefix}{self.finite}"

    def _middle_words(self) -> str:
        """Return the German words between the finite verb and the end of the clause."""
        return f"{self.early} {self.time.german} {self.late}"

    def _not(self) -> str:
        return "not" if self.negated else ""


class Grammar:
    """Grammar that draws sentence pairs at random.

    Args:
        seed: seed of the random generator.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def sentence(self) -> Pair:
        """Draw a sentence in English and German."""
        kinds = [self.statement, self.statement, self.question, self.report, self.join_clauses]
        return _finish_sentences(*self.random.choice(kinds)())

    def statement(self) -> Pair:
        """Draw a statement, sometimes with a time expression at the beginning."""
        clause, time = self.clause(self.tense()), Phrase("", "")
        if self.random.random() < 0.5:
            clause, time = clause._replace(time=time), clause.time
        if time.german:
            return f"{time.english} {clause.english()}", f"{time.german} {clause.german_verb_first()}"
        return clause.english(), clause.german()

    def question(self) -> Pair:
        """Draw a question with or without a question word."""
        english, german = self.random.choice([("", ""), ("", ""), ("why", "warum"), ("who", "wer")])
        if english == "who":
            clause = self.clause(self.tense(), Phrase("who", "wer"))
            return clause.english() + "?", clause.german() + "?"
        clause = self.clause(self.tense())
        return f"{english} {clause.english_question()}?", f"{german} {clause.german_verb_first()}?"

    def report(self) -> Pair:
        """Draw a sentence with a "that" clause, such as "I know that ..."."""
        outer = self.clause(self.random.choice(["present", "past"]), verbs=REPORTS, timed=False)
        inner = self.clause(self.tense())
        german = f"{outer.german()}, dass {inner.german_verb_final()}"
        return f"{outer.english()} that {inner.english()}", german

    def join_clauses(self) -> Pair:
        """Draw a main clause with a subordinate clause before or after it."""
        conjunction, german, tenses = self.random.choice(CONJUNCTIONS.split()).split(":")
        tense = self.random.choice(["present", "past"] if tenses == "same" else ["present"])
        main, other = (self.clause(self.tense() if tenses == "any" else tense) for _ in range(2))
        english, german = f"{conjunction} {other.english()}", f"{german} {other.german_verb_final()}"
        if self.random.random() < 0.5:
            return f"{english}, {main.english()}", f"{german}, {main.german_verb_first()}"
        return f"{main.english()} {english}", f"{main.german()}, {german}"

    def tense(self) -> str:
        """Draw a tense: "present", "past" or "modal"."""
        return self.random.choice(["present", "present", "past", "past", "modal"])

    def clause(
        self,
        tense: str,
        subject: Optional[Phrase] = None,
        kind: str = "person",
        verbs: str = VERBS,
        timed: bool = True,
    ) -> Clause:
        """Draw a clause: verb, subject, objects, place, time and negation.

        Args:
            tense: "present", "past" or "modal".
            subject: subject of the clause. If None, a subject is drawn.
            kind: kind of the given subject, "person" or "animal".
            verbs: table of verbs, in the format of ``VERBS``.
            timed: True if the clause may have a time expression.
        """
        draw = self.random
        rows = [row for row in _split_lines(verbs) if kind in _expand_kinds(row[0])]
        kinds, government, objects, place, *entries = draw.choice(rows)
        base, past, infinitive, third, participle = draw.choice(entries).split(":")
        negated = draw.random() < 0.15 and subject is None
        if subject is None:
            kind = "animal" if kinds == "living" and draw.random() < 0.3 else "person"
            subject = self.subject(kind, negated)
        definite = negated or subject.english.startswith("no ")
        negation = "nicht" if negated else ""
        early, late, rest = self.complements(government, objects, subject, definite, negation)
        if place == "whither" or place == "where" and draw.random() < 0.3:
            where = self.place(place)
            rest, late = f"{rest} {where.english}", f"{late} {where.german}"
        time = Phrase("", "")
        if timed and draw.random() < 0.3:
            time = Phrase(*draw.choice(TIMES["past" if tense == "past" else "present"]).split(":"))
        prefix, _, stem = infinitive.rpartition("|")
        auxiliary, verb, inflected, modal = self.english_verb(base, past, tense, subject.agreement)
        if modal:
            finite, end, prefix = modal, prefix + stem, ""
        elif tense == "past":
            finite, end, prefix = "sein" if participle[0] == "+" else "haben", participle.lstrip("+"), ""
        else:
            finite, end = stem, ""
        english = (auxiliary, verb, inflected, rest)
        finite = _inflect_verb(finite, third, subject.agreement)
        return Clause(subject, time, negated, *english, finite, prefix, early, late, end)

    def english_verb(self, base: str, past: str, tense: str, agreement: str) -> Tuple[str, str, str, str]:
        """Conjugate an English verb. In the tense "modal", draw a modal verb as its auxiliary.

        Args:
            base: base form of the verb, such as "see".
            past: past form of the verb, such as "saw".
            tense: "present", "past" or "modal".
            agreement: "1", "3" or "p", as in :class:`Phrase`.

        Returns:
            - auxiliary verb, such as "do".
            - verb that follows the auxiliary.
            - inflected verb that replaces both, or "" with a modal verb.
            - German modal verb, or "" in the other tenses.
        """
        if tense == "modal":
            english, german = self.random.choice(MODALS).split(":")
            return english, base, "", german
        if tense == "past":
            return "did", base, past, ""
        if agreement != "3":
            return "do", base, base, ""
        head, _, rest = base.partition("_")
        ending = "es" if head.endswith(("s", "x", "ch", "sh", "o")) else "s"
        return "does", base, f"{head}{ending}_{rest}", ""

    def subject(self, kind: str, definite: bool) -> Phrase:
        """Draw a subject, sometimes a pronoun. ``kind`` is "person" or "animal".

        ``definite`` excludes the determiners "a" and "no".
        """
        if kind == "person" and self.random.random() < 0.35:
            return Phrase(*self.random.choice(SUBJECTS).split(":"), pronoun=True)
        return self.noun_phrase(kind, "nom", definite, relative=True)

    def complements(
        self, government: str, kinds: str, subject: Phrase, definite: bool, negation: str
    ) -> Tuple[str, str, str]:
        """Draw the objects of a verb.

        Args:
            government: preposition and case of the object, such as "mit+dat", or "-" for no object.
            kinds: kinds of the object's noun, separated by commas.
            subject: subject of the clause.
            definite: True to exclude the determiners "a" and "no".
            negation: "nicht" or "".

        Returns:
            - German objects before a time expression.
            - German objects after a time expression, with the negation.
            - English objects.
        """
        if government == "-":
            return "", negation, ""
        phrase = self.object(self.random.choice(_expand_kinds(kinds)), government[-3:], subject, definite)
        preposition = government[:-3].rstrip("+")
        if preposition == "dat":
            recipient = self.object("person", "dat", subject, definite)
            late, english = f"{phrase.german} {negation}", f"{phrase.english} to {recipient.english}"
            if recipient.pronoun:
                return recipient.german, late, english
            return "", f"{recipient.german} {late}", english
        if preposition:
            return "", f"{negation} {preposition} {phrase.german}", phrase.english
        if phrase.pronoun:
            return phrase.german, negation, phrase.english
        return "", f"{phrase.german} {negation}", phrase.english

    def object(self, kind: str, case: str, subject: Phrase, definite: bool) -> Phrase:
        """Draw an object of a kind such as "food", in the German case "acc" or "dat", sometimes a pronoun.

        The subject excludes pronouns such as "me" after "I". ``definite`` excludes "a" and "no".
        """
        if kind == "person" and self.random.random() < 0.35:
            first = 2 if subject.english in ("I", "we") else 0  # neither "I see me" nor "I see us"
            return Phrase(*self.random.choice(OBJECTS[case][first:]).split(":"), pronoun=True)
        return self.noun_phrase(kind, case, definite)

    def place(self, direction: str) -> Phrase:
        """Draw a place with a preposition. ``direction`` is "where" (position) or "whither" (direction)."""
        english, german, case, kind = self.random.choice(PLACES[direction]).split(":")
        phrase = self.noun_phrase(kind, case, definite=True)
        return Phrase(f"{english} {phrase.english}", f"{german} {phrase.german}")

    def noun_phrase(self, kind: str, case: str, definite: bool, relative: bool = False) -> Phrase:
        """Draw a noun phrase: determiner, adjective, noun and perhaps a relative clause.

        Args:
            kind: kind of noun, such as "person" or "food".
            case: German case, "nom", "acc" or "dat".
            definite: True to exclude the determiners "a" and "no".
            relative: True if a relative clause may follow.
        """
        draw = self.random
        noun = draw.choice(_entries(NOUNS, kind))
        english, english_plural, german, german_plural, gender = noun.split(":")
        plural = draw.random() < 0.3
        number = "p" if plural else gender[0]
        determiners = DEFINITE[plural].split() if definite else PLURAL if plural else SINGULAR
        determiner, stem = draw.choice(determiners).split(":")
        article, weak = _inflect_determiner(stem, case, number)
        words, german_words = [determiner], [article]
        if draw.random() < 0.4:
            adjective, german_stem = draw.choice(_entries(ADJECTIVES, kind)).split(":")
            words.append(adjective)
            german_words.append(german_stem.rstrip("e") + (weak or STRONG[case][number]))
        words.append((english_plural or english + "s") if plural else english)
        words[0] += "n" if determiner == "a" and words[1][0] in "aeiou" else ""
        if plural:
            german = german_plural + ("n" if case == "dat" and german_plural[-1] not in "ns" else "")
        elif gender[1:] and case != "nom":
            german = german_plural
        german_words.append(german)
        if relative and draw.random() < 0.15:
            pronoun, agreement = _inflect_determiner("d", "nom", number)[0], "p" if plural else "3"
            who = Phrase("which" if kind == "animal" else "who", pronoun, agreement)
            clause = self.clause(draw.choice(["present", "past"]), who, kind, timed=False)
            words.append(clause.english())
            german_words.append(f", {clause.german_verb_final()},")
        return Phrase(" ".join(words), " ".join(german_words), "p" if plural else "3")


def _inflect_determiner(stem: str, case: str, number: str) -> Tuple[str, str]:
    """Inflect a German determiner.

    Args:
        stem: stem of the determiner, such as "dies" or "kein".
        case: "nom", "acc" or "dat".
        number: "p" for plural, or the gender of a singular noun: "m", "f" or "n".

    Returns:
        - determiner with its ending, such as "diesem".
        - weak ending of an adjective that follows, or "" if the adjective has a strong ending.
    """
    ending = STRONG[case][number]
    weak = "e" if case + number in ("nomm", "nomf", "nomn", "accf", "accn") else "en"
    if stem == "d":
        return "d" + {"e": "ie", "es": "as"}.get(ending, ending), weak
    bare = case + number in ("nomm", "nomn", "accn") and stem.endswith(("ein", "ihr"))
    if bare or stem in ("", "zwei", "drei", "fünf"):
        return stem, ""
    return stem + ending, "" if stem == "viel" else weak


def _inflect_verb(infinitive: str, third: str, agreement: str) -> str:
    """Conjugate a German verb without prefix in the present tense, such as ("gehen", "", "3") to "geht".

    ``third`` is the third person singular if irregular, or "", and ``agreement`` is as in :class:`Phrase`.
    """
    stem = infinitive[:-2]
    forms = [stem + "e", third or stem + ("et" if stem[-1] in "td" else "t"), infinitive]
    return FINITE.get(infinitive, forms)["13p".index(agreement)]


def _finish_sentences(english: str, german: str) -> Pair:
    """Add capitals and punctuation to a sentence pair, and contract German prepositions: "in dem" to "im"."""
    texts = []
    for text in (english.replace(" can not ", " cannot "), german):
        text = re.sub(r"[ ,]*,[ ,]*", ", ", " ".join(text.replace("_", " ").split()))
        text = re.sub(r"[ ,]*(\?|$)", r"\1", text, count=1)
        texts.append(text[0].upper() + text[1:] + ("" if text.endswith("?") else "."))
    for contraction in CONTRACTIONS:
        long, short = contraction.replace("_", " ").split(":")
        texts[1] = texts[1].replace(f" {long} ", f" {short} ")
    return texts[0], texts[1]


@lru_cache(maxsize=None)
def _split_lines(table: str) -> List[List[str]]:
    r"""Split a table into lines, and each line into words: "a b\nc" gives [["a", "b"], ["c"]]."""
    return [line.split() for line in table.strip().splitlines()]


@lru_cache(maxsize=None)
def _entries(table: str, kind: str) -> List[str]:
    """Return the entries of a table for one kind of noun, such as "person".

    Each line of the table has comma-separated kinds, followed by entries.
    """
    return [
        entry for kinds, *entries in _split_lines(table) if kind in _expand_kinds(kinds) for entry in entries
    ]


def _expand_kinds(names: str) -> List[str]:
    """Expand groups into their kinds of nouns: "living,room" gives ["person", "animal", "room"]."""
    return [kind for name in names.split(",") for kind in GROUPS.get(name, (name,))]


def draw_corpus(sizes: Dict[str, int], seed: int) -> Dict[str, List[Pair]]:
    """Draw the splits of a corpus in the order of ``sizes``. No sentence occurs twice in either language.

    Args:
        sizes: number of pairs, keyed by split, such as ``{"test": 500}``.
        seed: seed of the random generator.

    Returns:
        Pairs (English, German), keyed by split.

    Raises:
        InputError: The grammar does not have that many sentences.

    Example:
        >>> draw_corpus({"test": 1}, seed=1)["test"][0][0]
        'This aunt who dreams of a neighbour will talk to my hungry men.'
    """
    pairs = _distinct_pairs(seed, sum(sizes.values()))
    return {
        split: [next(pairs) for _ in progress(range(size), f"draw {split}", "pairs")]
        for split, size in sizes.items()
    }


def _distinct_pairs(seed: int, number: int) -> Iterator[Pair]:
    """Yield pairs (English, German) without repeating a sentence of either language.

    Args:
        seed: seed of the random generator.
        number: number of pairs to draw, which limits the attempts.

    Raises:
        InputError: The grammar does not have that many sentences.
    """
    grammar = Grammar(seed)
    english_seen, german_seen = set(), set()
    for _ in range(MAX_DRAWS_PER_PAIR * number):
        english, german = grammar.sentence()
        if english not in english_seen and german not in german_seen:
            english_seen.add(english)
            german_seen.add(german)
            yield english, german
    raise InputError(f"the grammar does not have {number:,} different sentences. Give smaller numbers.")


def write_corpus(corpus: Dict[str, List[Pair]], folder: Path) -> None:
    """Write ``SPLIT.en`` and ``SPLIT.de`` into a folder, one sentence per line.

    Args:
        corpus: pairs, keyed by split.
        folder: folder to write to, created if it does not exist.

    Raises:
        InputError: The folder is not writable.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write to {folder}: it is a file. Use a folder.")
    try:
        for split, pairs in corpus.items():
            for language, sentences in zip(("en", "de"), zip(*pairs)):
                with replacing(folder / f"{split}.{language}") as temporary:
                    temporary.write_bytes("".join(sentence + "\n" for sentence in sentences).encode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def build_parser() -> argparse.ArgumentParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, f"{PROGRAM} --destdir corpus --train 4000")
    parser.add_argument("--destdir", required=True, type=Path, metavar="DIR", help="folder to write to")
    for split, name, size in (
        ("train", "training", 16000),
        ("valid", "validation", 500),
        ("test", "test", 500),
    ):
        parser.count(f"--{split}", size, f"number of {name} pairs")
    seed = "seed of the random generator (default: 1)"
    parser.add_argument("--seed", type=random_seed, default=1, metavar="N", help=seed)
    return parser


def _write(args: argparse.Namespace) -> None:
    corpus = draw_corpus({"test": args.test, "valid": args.valid, "train": args.train}, args.seed)
    write_corpus(corpus, args.destdir)
    for split in ("train", "valid", "test"):
        print(f"wrote {len(corpus[split]):,} pairs to {args.destdir / split}.en and .de")


main = console_script(PROGRAM, build_parser, _write, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
