"""Fast tokenizer of exported Luna models.

Special tokens in input text, such as "</s>", are tokenized as ordinary text, as in fairseq. Only the mask
token is recognized.
"""

from typing import Any, Optional, Tuple

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

MASK = "<mask>"


class _LunaTokenizer(PreTrainedTokenizerFast):
    """Implementation of :class:`LunaTokenizer` that may have separate source and target vocabularies."""

    _tokenizer: Any  # transformers declares it as None
    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": "target_tokenizer.json"}

    def __init__(self, *args: Any, target_tokenizer_file: Optional[str] = None, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "split_special_tokens": True})
        self._source = self._tokenizer
        self._source.encode_special_tokens = True
        self.target: Optional[Tokenizer] = None
        if target_tokenizer_file is not None:
            self.set_target(Tokenizer.from_file(target_tokenizer_file))

    def set_target(self, target: Tokenizer) -> None:
        """Set a separate target-language tokenizer, which encodes ``text_target`` and decodes ids."""
        self.target = target
        self.target.encode_special_tokens = True

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens to the vocabulary. Return the number of added tokens, not counting the mask token.

        The mask token includes the preceding space, as in RoBERTa, and is not added as a special token.
        """
        masks = [token for token in new_tokens if str(token) == MASK]
        others = [token for token in new_tokens if str(token) != MASK]
        if masks:
            self._tokenizer.add_tokens([AddedToken(MASK, lstrip=True, normalized=False, special=False)])
        return super()._add_tokens(others, special_tokens) if others else 0

    def _switch_to_target_mode(self) -> None:
        self._tokenizer = self.target or self._source

    def _switch_to_input_mode(self) -> None:
        self._tokenizer = self._source

    def _decode(self, *args: Any, **kwargs: Any) -> Any:
        # A shallow copy decodes, because other threads may encode meanwhile. copy.copy would call
        # __getstate__, which copies the vocabularies.
        decoder = type(self).__new__(type(self))
        vars(decoder).update(vars(self), _tokenizer=self.target or self._source)
        return super(_LunaTokenizer, decoder)._decode(*args, **kwargs)

    def _save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Tuple[str, ...]:
        names = super()._save_pretrained(save_directory, *args, **kwargs)
        if self.target is not None:
            path = f"{save_directory}/target_tokenizer.json"
            self.target.save(path)
            names = (*names, path)
        return names


class LunaTokenizer(_LunaTokenizer):
    """Fast tokenizer of an exported Luna model, with an optional separate tokenizer for the target language.

    The base class contains the implementation, because transformers 5 would otherwise rebuild the tokenizer
    from its files and ignore ``target_tokenizer_file``.
    """
