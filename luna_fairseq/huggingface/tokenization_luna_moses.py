"""Tokenizer of models whose text was tokenised by Moses and split into pieces by subword-nmt."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tokenizers import NormalizedString, Tokenizer, normalizers

from luna_fairseq.huggingface.tokenization_luna import LunaTokenizer
from luna_fairseq.text.moses import detokenize, normalize, tokenize

SEPARATOR = "<sep>"  # between the sentences of a document
WORD_END = "</w>"


class Merges:
    """Byte-pair merges of a subword-nmt code file, applied to one word at a time.

    Args:
        codes: contents of the file
    """

    def __init__(self, codes: str):
        lines = codes.rstrip("\n").split("\n")
        self.end_is_symbol = not lines[0].startswith("#version") or lines[0].split()[1] == "0.1"
        rules = [tuple(line.strip("\r\n ").split(" ")) for line in lines if not line.startswith("#version")]
        self.ranks: Dict[Tuple[str, ...], int] = {}
        for rank, rule in enumerate(rules):
            self.ranks.setdefault(rule, rank)
        self.pieces = lru_cache(maxsize=100_000)(self._pieces)

    def _pieces(self, word: str) -> List[str]:
        """Split a word into pieces. All but the last end with ``@@``."""
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
    """Normalizer of the ``tokenizers`` library that turns plain text into pieces with spaces between them.

    Args:
        language: language of the text, for Moses
        merges: how words are split
    """

    def __init__(self, language: str, merges: Merges):
        self.language, self.merges = language, merges

    def normalize(self, text: NormalizedString) -> None:
        """Replace ``text`` by its pieces, in place."""
        words = tokenize(normalize(text.normalized, self.language), self.language)
        text.clear()
        text.append(" ".join(piece for word in words for piece in self.merges.pieces(word)))


class _LunaMosesTokenizer(LunaTokenizer):
    """Fast tokenizer that reads and writes plain text, and applies Moses and byte-pair merges in between.

    Args:
        codes_file: subword-nmt's file of merges
        languages: source and target language. Text is decoded as the target language.
        args, kwargs: arguments of :class:`LunaTokenizer`

    Raises:
        ImportError: sacremoses is not installed
    """

    vocab_files_names = {**LunaTokenizer.vocab_files_names, "codes_file": "bpe.codes"}

    def __init__(
        self, *args: Any, codes_file: Optional[str] = None, languages: Sequence[str] = (), **kwargs: Any
    ):
        try:
            import sacremoses  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "the model's tokenizer needs sacremoses, which is not installed: pip install sacremoses"
            ) from error
        if codes_file is None or len(languages) != 2:
            raise ValueError("the tokenizer needs bpe.codes and two languages: copy the whole folder")
        super().__init__(*args, languages=list(languages), **kwargs)
        self.codes = Path(codes_file).read_text(encoding="utf-8")
        self.languages = list(languages)
        self._install()

    def _install(self) -> None:
        merges = Merges(self.codes)
        source, target = (normalizers.Normalizer.custom(PlainText(one, merges)) for one in self.languages)
        self._plain, self._readers = self._source.normalizer, (source, target)
        if self.target is not None:
            self.target.normalizer = target
        self._switch_to_input_mode()

    def set_target(self, target: Tokenizer) -> None:
        """Encode the target language with ``target``."""
        super().set_target(target)
        if "_readers" in vars(self):
            target.normalizer = self._readers[1]

    def _switch_to_target_mode(self) -> None:
        super()._switch_to_target_mode()
        self._tokenizer.normalizer = self._readers[1]

    def _switch_to_input_mode(self) -> None:
        super()._switch_to_input_mode()
        self._tokenizer.normalizer = self._readers[0]

    def _decode(self, *args: Any, **kwargs: Any) -> Any:
        sentences = super()._decode(*args, **kwargs).split(SEPARATOR)
        return f" {SEPARATOR} ".join(detokenize(one.split(), self.languages[1]) for one in sentences)

    def _save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Tuple[str, ...]:
        path = Path(save_directory) / self.vocab_files_names["codes_file"]
        path.write_text(self.codes, encoding="utf-8")
        self._remove_readers()
        try:
            return (*super()._save_pretrained(save_directory, *args, **kwargs), str(path))
        finally:
            self._install()

    def _remove_readers(self) -> None:
        """Restore the normalizers that the library can write to a file."""
        for tokenizer in (self._source, self.target):
            if tokenizer is not None:
                tokenizer.normalizer = self._plain

    def __getstate__(self) -> Dict[str, Any]:
        state = {**vars(self), "_plain": None, "_readers": None}
        self._remove_readers()
        try:
            for name in ("_source", "target"):
                if state[name] is not None:
                    state[name] = Tokenizer.from_str(state[name].to_str())
        finally:
            self._install()
        return {**state, "_tokenizer": state["_source"]}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        vars(self).update(state)
        for tokenizer in (self._source, self.target):
            if tokenizer is not None:
                tokenizer.encode_special_tokens = True
        self._install()


class LunaMosesTokenizer(_LunaMosesTokenizer):
    """The class above. transformers 5 rebuilds a class with its own ``__init__`` from its file alone."""
