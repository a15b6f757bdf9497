"""Tokenizer for models whose text was tokenized with Moses and split into subwords with subword-nmt."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tokenizers import NormalizedString, Tokenizer, normalizers

from luna_fairseq.huggingface.tokenization_luna import LunaTokenizer
from luna_fairseq.text.moses import detokenize, normalize, tokenize

SEPARATOR = "<sep>"  # separates the sentences of a document
WORD_END = "</w>"


class Merges:
    r"""Byte-pair encoding as in subword-nmt, built from the contents of a codes file.

    The split of each word is cached.

    Example:
        >>> Merges("#version: 0.2\nl o\nlo w</w>").split("slow")
        ['s@@', 'low']
    """

    def __init__(self, codes: str):
        lines = codes.rstrip("\n").split("\n")
        self.end_is_symbol = not lines[0].startswith("#version") or lines[0].split()[1] == "0.1"
        rules = [tuple(line.strip("\r\n ").split(" ")) for line in lines if not line.startswith("#version")]
        self.ranks: Dict[Tuple[str, ...], int] = {}
        for rank, rule in enumerate(rules):
            self.ranks.setdefault(rule, rank)
        self.split = lru_cache(maxsize=100_000)(self._split_word)

    def _split_word(self, word: str) -> List[str]:
        """Split a word into subwords such as "walk@@" and "ing". All but the last subword end with "@@"."""
        if len(word) < 2:
            return [word]
        parts = [*word, WORD_END] if self.end_is_symbol else [*word[:-1], word[-1] + WORD_END]
        while len(parts) > 1:
            pair = min(zip(parts, parts[1:]), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if pair not in self.ranks:
                break
            merged: List[str] = []
            for part in parts:
                if merged and (merged[-1], part) == pair:
                    merged[-1] += part
                else:
                    merged.append(part)
            parts = merged
        parts = parts[:-1] if parts[-1] == WORD_END else parts
        last = parts[-1][: -len(WORD_END)] if parts[-1].endswith(WORD_END) else parts[-1]
        return [f"{part}@@" for part in parts[:-1]] + [last]


class PlainText:
    """Normalizer of the ``tokenizers`` library that converts plain text to subwords separated by spaces."""

    def __init__(self, language: str, merges: Merges):
        self.language, self.merges = language, merges

    def normalize(self, text: NormalizedString) -> None:
        words = tokenize(normalize(text.normalized, self.language), self.language)
        # Not clear() and append(): tokenizers 0.20 appends nothing to an empty text.
        text.replace(text.normalized, " ".join(piece for word in words for piece in self.merges.split(word)))


class _LunaMosesTokenizer(LunaTokenizer):
    """Implementation of :class:`LunaMosesTokenizer`, with Moses tokenization and byte-pair encoding."""

    vocab_files_names = {**LunaTokenizer.vocab_files_names, "codes_file": "bpe.codes"}

    def __init__(
        self, *args: Any, codes_file: Optional[str] = None, languages: Sequence[str] = (), **kwargs: Any
    ):
        try:
            import sacremoses  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "This tokenizer needs sacremoses, which is not installed. Run pip install sacremoses"
            ) from error
        if codes_file is None or len(languages) != 2:
            raise ValueError("Expected bpe.codes and two languages. Copy all files of the exported folder.")
        super().__init__(*args, languages=list(languages), **kwargs)
        self.codes = Path(codes_file).read_text(encoding="utf-8")
        self.languages = list(languages)
        self._set_normalizers()

    def _set_normalizers(self) -> None:
        """Install the normalizers that apply Moses and byte-pair encoding to source and target text."""
        merges = Merges(self.codes)
        source, target = (
            normalizers.Normalizer.custom(PlainText(language, merges)) for language in self.languages
        )
        self._saved_normalizer, self._normalizers = self._source.normalizer, (source, target)
        if self.target is not None:
            self.target.normalizer = target
        self._switch_to_input_mode()

    def set_target(self, target: Tokenizer) -> None:
        super().set_target(target)
        # The base class constructor calls this method before the normalizers exist.
        if "_normalizers" in vars(self):
            target.normalizer = self._normalizers[1]

    def _switch_to_target_mode(self) -> None:
        super()._switch_to_target_mode()
        self._tokenizer.normalizer = self._normalizers[1]

    def _switch_to_input_mode(self) -> None:
        super()._switch_to_input_mode()
        self._tokenizer.normalizer = self._normalizers[0]

    def _decode(self, *args: Any, **kwargs: Any) -> Any:
        """Decode token ids, and detokenize each sentence of a document separately, joined with "<sep>"."""
        sentences = super()._decode(*args, **kwargs).split(SEPARATOR)
        text = f" {SEPARATOR} ".join(
            detokenize(sentence.split(), self.languages[1]) for sentence in sentences
        )
        return text.replace("  ", " ").strip()  # an empty sentence leaves two spaces

    def _save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Tuple[str, ...]:
        path = Path(save_directory) / self.vocab_files_names["codes_file"]
        path.write_text(self.codes, encoding="utf-8")
        self._remove_normalizers()
        try:
            return (*super()._save_pretrained(save_directory, *args, **kwargs), str(path))
        finally:
            self._set_normalizers()

    def _remove_normalizers(self) -> None:
        """Restore the original normalizers, because Python normalizers cannot be saved or pickled."""
        for tokenizer in (self._source, self.target):
            if tokenizer is not None:
                tokenizer.normalizer = self._saved_normalizer

    def __getstate__(self) -> Dict[str, Any]:
        state = {**vars(self), "_saved_normalizer": None, "_normalizers": None}
        self._remove_normalizers()
        try:
            for name in ("_source", "target"):
                if state[name] is not None:
                    state[name] = Tokenizer.from_str(state[name].to_str())
        finally:
            self._set_normalizers()
        return {**state, "_tokenizer": state["_source"]}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        vars(self).update(state)
        for tokenizer in (self._source, self.target):
            if tokenizer is not None:
                tokenizer.encode_special_tokens = True
        self._set_normalizers()


class LunaMosesTokenizer(_LunaMosesTokenizer):
    """Fast tokenizer that applies Moses tokenization and subword-nmt's byte-pair encoding to plain text.

    Decoding joins the subwords and detokenizes the text with Moses. ``codes_file`` is the BPE codes file of
    subword-nmt, and ``languages`` are the source and target language, such as ("de", "en"). The base class
    contains the implementation, because transformers 5 would otherwise rebuild the tokenizer.
    """
