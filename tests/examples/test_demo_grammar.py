"""Sentences of the demonstration grammar against wordings written by hand."""

import pytest
from demo_grammar import lexicon
from demo_grammar.english import english_sentence
from demo_grammar.german import german_sentence
from demo_grammar.inflection import noun_words, present
from demo_grammar.lexicon import Preposition
from demo_grammar.meaning import (
    Clause,
    NounPhrase,
    Pronoun,
    Quality,
    RelativePronoun,
    Sentence,
)
from demo_grammar.numbers import english_number, german_number
from demo_grammar.sampling import Sampler

VERBS = {verb.english: verb for verb in lexicon.VERBS}
CLAUSE_VERBS = {verb.english: verb for verb in lexicon.CLAUSE_VERBS}
MODALS = {modal.english: modal for modal in lexicon.MODALS}
TIMES = {time.english: time for time in lexicon.TIMES}
ADJECTIVES = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
CONJUNCTIONS = {conjunction.english: conjunction for conjunction in lexicon.CONJUNCTIONS}
ME, HE, SHE, WE, THEY, YOU = (
    Pronoun(1),
    Pronoun(3, gender="m"),
    Pronoun(3, gender="f"),
    Pronoun(1, plural=True),
    Pronoun(3, plural=True),
    Pronoun(2),
)


def np(noun, determiner="the", *adjectives, plural=False, number=None, relative=None):
    qualities = tuple(Quality(ADJECTIVES[adjective]) for adjective in adjectives)
    return NounPhrase(lexicon.NOUN_BY_NAME[noun], plural, determiner, qualities, number, relative)


def clause(subject, verb, target=None, **rest):
    rest["modal"] = MODALS[rest["modal"]] if "modal" in rest else None
    rest["time"] = TIMES[rest["time"]] if "time" in rest else None
    return Clause(subject, (CLAUSE_VERBS if "content" in rest else VERBS)[verb], object=target, **rest)


def gap(noun, plural=False):
    return RelativePronoun(lexicon.NOUN_BY_NAME[noun], plural)


IN = Preposition("in", "in", "dat")
INTO = Preposition("into", "in", "acc")
MAN, WOMAN, BOOK = np("man"), np("woman"), np("book")

STATEMENTS = [
    # present, perfect with haben and with sein, preterite of sein, haben and the modal verbs
    (clause(MAN, "buy", BOOK), "The man buys the book.", "Der Mann kauft das Buch."),
    (clause(MAN, "buy", BOOK, past=True), "The man bought the book.", "Der Mann hat das Buch gekauft."),
    (
        clause(WE, "go", place=(INTO, np("garden")), past=True),
        "We went into the garden.",
        "Wir sind in den Garten gegangen.",
    ),
    (
        clause(SHE, "have", np("dog", "a", "old"), past=True),
        "She had an old dog.",
        "Sie hatte einen alten Hund.",
    ),
    (
        clause(THEY, "be", predicate=Quality(ADJECTIVES["tired"], very=True), past=True, negated=True),
        "They were not very tired.",
        "Sie waren nicht sehr müde.",
    ),
    # modal verbs: the infinitive at the end, a separable one in one word
    (
        clause(ME, "pick+up", np("child", "my"), modal="have to", time="today"),
        "I have to pick up my child today.",
        "Ich muss mein Kind heute abholen.",
    ),
    (
        clause(HE, "read", np("letter"), modal="want to", past=True, negated=True),
        "He did not want to read the letter.",
        "Er wollte den Brief nicht lesen.",
    ),
    (
        clause(YOU, "feed", np("horse", plural=True), modal="be allowed to", negated=True),
        "You are not allowed to feed the horses.",
        "Du darfst die Pferde nicht füttern.",
    ),
    (clause(MAN, "sing", modal="can", negated=True), "The man cannot sing.", "Der Mann kann nicht singen."),
    # separable verbs in the main clause
    (clause(np("boy"), "get_up"), "The boy gets up.", "Der Junge steht auf."),
    (clause(SHE, "pick+up", HE), "She picks him up.", "Sie holt ihn ab."),
    (clause(YOU, "invite", np("neighbour")), "You invite the neighbour.", "Du lädst den Nachbarn ein."),
    (
        clause(WE, "look", np("child", plural=True), past=True),
        "We looked after the children.",
        "Wir haben auf die Kinder aufgepasst.",
    ),
    # inversion after a time that comes first
    (
        clause(np("friend", "your", plural=True), "arrive", time="tomorrow", time_first=True),
        "Tomorrow your friends arrive.",
        "Morgen kommen deine Freunde an.",
    ),
    # definite objects before, indefinite ones after the time; the dative first
    (
        clause(WOMAN, "give", np("gift", "a"), recipient=np("child"), time="today"),
        "The woman gives a gift to the child today.",
        "Die Frau gibt dem Kind heute ein Geschenk.",
    ),
    (
        clause(WOMAN, "give+back", np("key", plural=True), recipient=THEY, time="yesterday", past=True),
        "The woman gave back the keys to them yesterday.",
        "Die Frau hat ihnen die Schlüssel gestern zurückgegeben.",
    ),
    # kein and nicht
    (
        clause(MAN, "buy", np("book", "a"), negated=True),
        "The man does not buy a book.",
        "Der Mann kauft kein Buch.",
    ),
    (
        clause(MAN, "sell", np("picture", "", "old", plural=True), negated=True, past=True),
        "The man did not sell any old pictures.",
        "Der Mann hat keine alten Bilder verkauft.",
    ),
    (
        clause(ME, "drink", np("beer", "", "cold"), negated=True),
        "I do not drink any cold beer.",
        "Ich trinke kein kaltes Bier.",
    ),
    (
        clause(HE, "wait", np("bus"), negated=True, time="now"),
        "He does not wait for the bus now.",
        "Er wartet jetzt nicht auf den Bus.",
    ),
    (clause(np("student", "no"), "laugh"), "No student laughs.", "Kein Student lacht."),
    # the dative, weak masculines, dative plurals
    (clause(HE, "help", np("student")), "He helps the student.", "Er hilft dem Studenten."),
    (
        clause(ME, "thank", np("friend", "", "good", plural=True)),
        "I thank good friends.",
        "Ich danke guten Freunden.",
    ),
    (
        clause(SHE, "play", np("cat", "", "small", plural=True, number=3)),
        None,
        "Sie spielt mit drei kleinen Katzen.",
    ),
    (clause(THEY, "talk", np("colleague", "a", "old")), None, "Sie sprechen mit einem alten Kollegen."),
    (clause(MAN, "dream", np("car")), "The man dreams of the car.", "Der Mann träumt vom Auto."),
    # contraction of preposition and article, dative of place and accusative of direction
    (clause(ME, "sleep", place=(IN, np("garden"))), "I sleep in the garden.", "Ich schlafe im Garten."),
    (
        clause(ME, "sleep", place=(IN, np("garden", "this"))),
        "I sleep in this garden.",
        "Ich schlafe in diesem Garten.",
    ),
    (clause(ME, "run", place=(INTO, np("house", "the", "dark"))), None, "Ich laufe ins dunkle Haus."),
    (
        clause(ME, "go_back", place=(INTO, np("city"))),
        "I go back into the city.",
        "Ich gehe in die Stadt zurück.",
    ),
    # adjectives whose stem changes, two adjectives, numbers between article and adjective
    (
        clause(np("hat", "a", "expensive"), "be", predicate=Quality(ADJECTIVES["dark"])),
        None,
        "Ein teurer Hut ist dunkel.",
    ),
    (
        clause(HE, "see", np("bird", "this", "small", "black", plural=True, number=21)),
        "He sees these twenty-one small black birds.",
        "Er sieht diese einundzwanzig kleinen schwarzen Vögel.",
    ),
    # verb-final subordinate clauses, the prefix joined to its verb
    (
        clause(ME, "know", content=clause(np("train"), "arrive", time="today")),
        "I know that the train arrives today.",
        "Ich weiß, dass der Zug heute ankommt.",
    ),
    (
        clause(HE, "ask", past=True, content=clause(SHE, "find", np("key", "her"), modal="can")),
        "He asked whether she can find her key.",
        "Er hat gefragt, ob sie ihren Schlüssel finden kann.",
    ),
    (
        clause(HE, "say", content=clause(np("woman"), "go", place=(INTO, np("house")), past=True)),
        "He says that the woman went into the house.",
        "Er sagt, dass die Frau ins Haus gegangen ist.",
    ),
    # relative clauses: as subject, as accusative, as dative, in the plural
    (
        clause(np("man", relative=clause(gap("man"), "turn+on", np("radio"))), "sing"),
        "The man who turns on the radio sings.",
        "Der Mann, der das Radio einschaltet, singt.",
    ),
    (
        clause(SHE, "read", np("book", relative=clause(MAN, "write", gap("book"), past=True))),
        "She reads the book which the man wrote.",
        "Sie liest das Buch, das der Mann geschrieben hat.",
    ),
    (
        clause(np("child", plural=True, relative=clause(ME, "help", gap("child", True))), "laugh", past=True),
        "The children whom I help laughed.",
        "Die Kinder, denen ich helfe, haben gelacht.",
    ),
]


@pytest.mark.parametrize("meaning, english, german", STATEMENTS, ids=[german for *_, german in STATEMENTS])
def test_statement(meaning, english, german):
    assert german_sentence(Sentence(meaning)) == german
    if english is not None:
        assert english_sentence(Sentence(meaning)) == english


QUESTIONS = [
    (clause(SHE, "see", np("dog"), past=True), "yes/no", "Did she see the dog?", "Hat sie den Hund gesehen?"),
    (clause(HE, "get_up"), "when", "When does he get up?", "Wann steht er auf?"),
    (clause(YOU, "go"), "where to", "Where do you go?", "Wohin gehst du?"),
    (
        clause(THEY, "work", modal="have to", past=True),
        "where",
        "Where did they have to work?",
        "Wo mussten sie arbeiten?",
    ),
    (clause(Pronoun(3, who=True), "need", ME), "who", "Who needs me?", "Wer braucht mich?"),
    (
        clause(ME, "buy", np("hat", "a"), modal="can", negated=True),
        "why",
        "Why can I not buy a hat?",
        "Warum kann ich keinen Hut kaufen?",
    ),
    (
        clause(np("tea"), "be", predicate=Quality(ADJECTIVES["hot"])),
        "yes/no",
        "Is the tea hot?",
        "Ist der Tee heiß?",
    ),
]


@pytest.mark.parametrize(
    "meaning, interrogative, english, german", QUESTIONS, ids=[german for *_, german in QUESTIONS]
)
def test_question(meaning, interrogative, english, german):
    assert english_sentence(Sentence(meaning, interrogative)) == english
    assert german_sentence(Sentence(meaning, interrogative)) == german


def test_adverbial_clause_first_inverts_the_main_clause():
    sentence = Sentence(
        clause(MAN, "turn+off", np("lamp")),
        "",
        CONJUNCTIONS["if"],
        clause(WOMAN, "fall_asleep"),
        adverbial_first=True,
    )
    assert german_sentence(sentence) == "Wenn die Frau einschläft, schaltet der Mann die Lampe aus."
    assert english_sentence(sentence) == "If the woman falls asleep, the man turns off the lamp."


def test_adverbial_clause_last():
    because = clause(HE, "lose", np("key", "his"), past=True)
    sentence = Sentence(clause(HE, "sit", place=(IN, np("kitchen"))), "", CONJUNCTIONS["because"], because)
    assert german_sentence(sentence) == "Er sitzt in der Küche, weil er seinen Schlüssel verloren hat."
    assert english_sentence(sentence) == "He sits in the kitchen because he lost his key."


DECLENSION = {
    ("the", False): "der kleine Hund|den kleinen Hund|dem kleinen Hund",
    ("a", False): "ein kleiner Hund|einen kleinen Hund|einem kleinen Hund",
    ("our", False): "unser kleiner Hund|unseren kleinen Hund|unserem kleinen Hund",
    ("every", False): "jeder kleine Hund|jeden kleinen Hund|jedem kleinen Hund",
    ("the", True): "die kleinen Hunde|die kleinen Hunde|den kleinen Hunden",
    ("", True): "kleine Hunde|kleine Hunde|kleinen Hunden",
    ("no", True): "keine kleinen Hunde|keine kleinen Hunde|keinen kleinen Hunden",
    ("many", True): "viele kleine Hunde|viele kleine Hunde|vielen kleinen Hunden",
}
DECLENSION_OTHER_GENDERS = {
    ("cat", "the"): "die kleine Katze|die kleine Katze|der kleinen Katze",
    ("cat", "a"): "eine kleine Katze|eine kleine Katze|einer kleinen Katze",
    ("horse", "the"): "das kleine Pferd|das kleine Pferd|dem kleinen Pferd",
    ("horse", "his"): "sein kleines Pferd|sein kleines Pferd|seinem kleinen Pferd",
    ("horse", "this"): "dieses kleine Pferd|dieses kleine Pferd|diesem kleinen Pferd",
    ("water", ""): "kaltes Wasser|kaltes Wasser|kaltem Wasser",
    ("milk", ""): "kalte Milch|kalte Milch|kalter Milch",
    ("coffee", ""): "kalter Kaffee|kalten Kaffee|kaltem Kaffee",
    ("bear", "the"): "der kleine Bär|den kleinen Bären|dem kleinen Bären",
}


def declined(phrase):
    return "|".join(" ".join(filter(None, noun_words(phrase, case))) for case in ("nom", "acc", "dat"))


@pytest.mark.parametrize("determiner, plural", DECLENSION)
def test_declension_of_a_masculine(determiner, plural):
    assert declined(np("dog", determiner, "small", plural=plural)) == DECLENSION[determiner, plural]


@pytest.mark.parametrize("noun, determiner", DECLENSION_OTHER_GENDERS)
def test_declension_of_other_genders(noun, determiner):
    adjective = "cold" if not determiner else "small"
    assert declined(np(noun, determiner, adjective)) == DECLENSION_OTHER_GENDERS[noun, determiner]


@pytest.mark.parametrize(
    "verb, forms",
    [
        ("buy", "kaufe kaufst kauft kaufen"),
        ("work", "arbeite arbeitest arbeitet arbeiten"),
        ("draw", "zeichne zeichnest zeichnet zeichnen"),
        ("read", "lese liest liest lesen"),
        ("eat", "esse isst isst essen"),
        ("sit", "sitze sitzt sitzt sitzen"),
        ("dance", "tanze tanzt tanzt tanzen"),
        ("close", "mache machst macht machen"),
        ("invite", "lade lädst lädt laden"),
        ("drive", "fahre fährst fährt fahren"),
        ("give", "gebe gibst gibt geben"),
        ("wash", "wasche wäschst wäscht waschen"),
        ("feed", "füttere fütterst füttert füttern"),
        ("have", "habe hast hat haben"),
    ],
)
def test_present(verb, forms):
    made = [present(VERBS[verb], person, False) for person in (1, 2, 3)] + [present(VERBS[verb], 3, True)]
    assert " ".join(made) == forms


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (23, "twenty-three", "dreiundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "hundert"),
        (101, "one hundred and one", "hunderteins"),
        (345, "three hundred and forty-five", "dreihundertfünfundvierzig"),
        (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
    ],
)
def test_number(number, english, german):
    assert (english_number(number), german_number(number)) == (english, german)


def test_numbers_are_distinct_and_bounded():
    for spell in (english_number, german_number):
        assert len({spell(number) for number in range(1000)}) == 1000
        for number in (-1, 1000):
            with pytest.raises(ValueError, match="from 0 to 999"):
                spell(number)


def test_translation_is_a_function():
    sampler, translations = Sampler(7), {}
    for _ in range(4000):
        sentence = sampler.sentence()
        english, german = english_sentence(sentence), german_sentence(sentence)
        assert translations.setdefault(english, german) == german
        for text in (english, german):
            assert text[0].isupper() and text[-1] in ".?" and "  " not in text and " ," not in text
            assert "_" not in text and "+" not in text and "|" not in text


def test_same_seed_same_sentences():
    first, second, other = ([str(Sampler(seed).sentence()) for seed in seeds] for seeds in ([3], [3], [4]))
    assert first == second != other
