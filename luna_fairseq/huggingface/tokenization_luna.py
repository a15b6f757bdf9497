"""Fast tokenizer of exported Luna models.

As in fairseq, special tokens that stand in a text (such as "</s>") are read as ordinary text. The mask token
is the exception.
"""

from typing import Any, Optional, Tuple

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

MASK = "<mask>"


class _LunaTokenizer(PreTrainedTokenizerFast):
    """Base class that implements :class:`LunaTokenizer`.

    Args:
        *args: arguments of :class:`transformers.PreTrainedTokenizerFast`.
        target_tokenizer_file: file of the tokenizer of the target language, which encodes ``text_target`` and
            decodes ids (default: None, both languages have one vocabulary).
        **kwargs: keyword arguments of :class:`transformers.PreTrainedTokenizerFast`.

    Attributes:
        target: tokenizer of the target language; None if both languages have one vocabulary.
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
        """Add tokens to the vocabulary.

        The mask token is not added as a special token, because it is recognized in a text. As in RoBERTa, it
        includes the space before it.

        Args:
            new_tokens: tokens to add.
            special_tokens: True to add them as special tokens (default: False).

        Returns:
            Number of added tokens, without the mask token.
        """
        masks = [token for token in new_tokens if str(token) == MASK]
        others = [token for token in new_tokens if str(token) != MASK]
        if masks:
            self._tokenizer.add_tokens([AddedToken(MASK, lstrip=True, normalized=False, special=False)])
        return super()._add_tokens(others, special_tokens) if others else 0

    def _switch_to_target_mode(self) -> None:
        """Use the tokenizer of the target language."""
        self._tokenizer = self.target or self._source

    def _switch_to_input_mode(self) -> None:
        """Use the tokenizer of the source language."""
        self._tokenizer = self._source

    def _decode(self, *args: Any, **kwargs: Any) -> Any:
        """Decode ids with the tokenizer of the target language.

        Args:
            args: arguments of transformers' method.
            kwargs: arguments of transformers' method.

        Returns:
            Text of the target language.
        """
        self._switch_to_target_mode()
        try:
            return super()._decode(*args, **kwargs)
        finally:
            self._switch_to_input_mode()

    def _save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Tuple[str, ...]:
        """Save the tokenizers of both languages and return the names of the files.

        Args:
            save_directory: folder of the tokenizer.
            args: further arguments of transformers' method.
            kwargs: further arguments of transformers' method.

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

    The implementation is in a base class, because transformers 5 rebuilds a tokenizer class that defines a
    constructor from its files and loses the extra arguments.

    Args:
        *args: arguments of :class:`transformers.PreTrainedTokenizerFast`.
        target_tokenizer_file: file of the tokenizer of the target language, which encodes ``text_target`` and
            decodes ids (default: None, both languages have one vocabulary).
        **kwargs: keyword arguments of :class:`transformers.PreTrainedTokenizerFast`.

    Example:
        >>> tokenizer = LunaTokenizer.from_pretrained("exported")  # doctest: +SKIP
        >>> tokenizer("two dogs", return_tensors="pt").input_ids  # doctest: +SKIP
    """
