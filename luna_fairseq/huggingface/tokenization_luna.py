"""Fast tokenizer of exported Luna models.

Special tokens in input text, such as "</s>", are treated as ordinary text, as in fairseq. Only the mask token
is recognized.
"""

from typing import Any, Optional, Tuple

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

MASK = "<mask>"


class _LunaTokenizer(PreTrainedTokenizerFast):
    """Implementation of :class:`LunaTokenizer`, which may have separate source and target vocabularies.

    Args:
        *args: positional arguments of :class:`transformers.PreTrainedTokenizerFast`.
        target_tokenizer_file: tokenizer file for the target language. This tokenizer encodes ``text_target``
            and decodes ids (default: None, both languages share one vocabulary).
        **kwargs: keyword arguments of :class:`transformers.PreTrainedTokenizerFast`.

    Attributes:
        target: tokenizer of the target language, or None if both languages share one vocabulary.
    """

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
        """Set the tokenizer of the target language.

        Args:
            target: tokenizer that encodes ``text_target`` and decodes ids.
        """
        self.target = target
        self.target.encode_special_tokens = True

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Override ``_add_tokens`` of transformers to add the mask token as an ordinary token.

        The tokenizer does not recognize special tokens in input text, but must recognize the mask token. As
        in RoBERTa, the mask token absorbs the preceding space.

        Args:
            new_tokens: tokens to add.
            special_tokens: add the other tokens as special tokens (default: False).

        Returns:
            Number of tokens added, not counting the mask token.
        """
        masks = [token for token in new_tokens if str(token) == MASK]
        others = [token for token in new_tokens if str(token) != MASK]
        if masks:
            self._tokenizer.add_tokens([AddedToken(MASK, lstrip=True, normalized=False, special=False)])
        return super()._add_tokens(others, special_tokens) if others else 0

    def _switch_to_target_mode(self) -> None:
        """Switch to the target tokenizer for encoding, as transformers requires for ``text_target``."""
        self._tokenizer = self.target or self._source

    def _switch_to_input_mode(self) -> None:
        """Switch back to the source tokenizer, as transformers requires after ``text_target``."""
        self._tokenizer = self._source

    def _decode(self, *args: Any, **kwargs: Any) -> Any:
        """Override ``_decode`` of transformers to decode ids with the target tokenizer.

        Args:
            *args: positional arguments of the overridden method.
            **kwargs: keyword arguments of the overridden method.

        Returns:
            Text in the target language.
        """
        self._switch_to_target_mode()
        try:
            return super()._decode(*args, **kwargs)
        finally:
            self._switch_to_input_mode()

    def _save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Tuple[str, ...]:
        """Override ``_save_pretrained`` of transformers to save the target tokenizer as well.

        Args:
            save_directory: folder to write to.
            *args: remaining positional arguments of the overridden method.
            **kwargs: keyword arguments of the overridden method.

        Returns:
            Names of the written files.
        """
        names = super()._save_pretrained(save_directory, *args, **kwargs)
        if self.target is not None:
            path = f"{save_directory}/target_tokenizer.json"
            self.target.save(path)
            names = (*names, path)
        return names


class LunaTokenizer(_LunaTokenizer):
    """Fast tokenizer of an exported Luna model.

    The implementation is in the base class. Otherwise, transformers 5 would rebuild the tokenizer from its
    files and ignore the additional constructor arguments.

    Args:
        *args: positional arguments of :class:`transformers.PreTrainedTokenizerFast`.
        target_tokenizer_file: tokenizer file for the target language. This tokenizer encodes ``text_target``
            and decodes ids (default: None, both languages share one vocabulary).
        **kwargs: keyword arguments of :class:`transformers.PreTrainedTokenizerFast`.

    Example:
        >>> tokenizer = LunaTokenizer.from_pretrained("exported")  # doctest: +SKIP
        >>> tokenizer("two dogs", return_tensors="pt").input_ids  # doctest: +SKIP
    """
