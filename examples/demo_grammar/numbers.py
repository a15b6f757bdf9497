"""Whole numbers from 0 to 999 in English and German words."""

_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
).split()
_ENGLISH_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
_GERMAN = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn"
    " achtzehn neunzehn"
).split()
_GERMAN_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english_number(number: int) -> str:
    """Spell 0 to 999 in English: 123 is "one hundred and twenty-three".

    Raises:
        ValueError: the number is out of range.
    """
    _check(number)
    if number < 20:
        return _ENGLISH[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _ENGLISH_TENS[tens] + ("-" + _ENGLISH[ones] if ones else "")
    hundreds, rest = divmod(number, 100)
    return _ENGLISH[hundreds] + " hundred" + (" and " + english_number(rest) if rest else "")


def german_number(number: int) -> str:
    """Spell 0 to 999 in German: 123 is "hundertdreiundzwanzig".

    Raises:
        ValueError: the number is out of range.
    """
    _check(number)
    if number < 20:
        return _GERMAN[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (_in_compound(ones) + "und" if ones else "") + _GERMAN_TENS[tens]
    hundreds, rest = divmod(number, 100)
    return (
        (_in_compound(hundreds) if hundreds > 1 else "") + "hundert" + (german_number(rest) if rest else "")
    )


def _in_compound(digit: int) -> str:
    return "ein" if digit == 1 else _GERMAN[digit]


def _check(number: int) -> None:
    if not 0 <= number <= 999:
        raise ValueError(f"numbers from 0 to 999 can be spelt, got {number}")
