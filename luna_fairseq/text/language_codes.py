"""Language codes of ISO 639, with which users name the files of a language."""

import re

# Two-letter codes (ISO 639-1), keyed by three-letter codes (ISO 639-2 and 639-3). These are the languages for
# which sacremoses has rules or sacreBLEU has a tokenizer, and languages without spaces between words.
_TWO_LETTERS = {
    **{"asm": "as", "ben": "bn", "cat": "ca", "ces": "cs", "cze": "cs", "deu": "de", "ger": "de"},
    **{"ell": "el", "gre": "el", "eng": "en", "spa": "es", "est": "et", "fin": "fi", "fra": "fr"},
    **{"fre": "fr", "gle": "ga", "guj": "gu", "hin": "hi", "hun": "hu", "isl": "is", "ice": "is"},
    **{"ita": "it", "jpn": "ja", "kan": "kn", "kor": "ko", "lit": "lt", "lav": "lv", "mal": "ml"},
    **{"mar": "mr", "nld": "nl", "dut": "nl", "ori": "or", "ory": "or", "pan": "pa", "pol": "pl"},
    **{"por": "pt", "ron": "ro", "rum": "ro", "rus": "ru", "slk": "sk", "slo": "sk", "slv": "sl"},
    **{"swe": "sv", "tam": "ta", "tel": "te", "zho": "zh", "chi": "zh", "cmn": "zh"},
    **{"tha": "th", "lao": "lo", "khm": "km", "mya": "my", "bur": "my", "bod": "bo", "tib": "bo"},
}


def base_language(code: str) -> str:
    """Return a language code without its region, in two letters if possible: "en" for "en-GB" or "eng"."""
    base = re.split("[-_]", code)[0].lower()
    return _TWO_LETTERS.get(base, base)
