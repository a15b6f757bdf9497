"""Python interface to a trained masked language model.

The interface extends RoBERTa's hub interface by batches and by the packed sequence P.
"""

import logging
from typing import Any, Dict, List, Sequence, Tuple, Type, Union

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.models.roberta import RobertaHubInterface, RobertaModel
from luna_fairseq.errors import InputError
from luna_fairseq.models.classification_heads import mean_of_packed
from luna_fairseq.text.pieces import MASK, check_encoded, check_tokenizer, is_filler

logger = logging.getLogger(__name__)

Tokens = Union[Tensor, Sequence[Tensor]]


class Words:
    """Tokenizer for data of words that are separated by spaces.

    Args:
        dictionary: dictionary of the model
    """

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary

    def encode(self, text: str) -> str:
        """Return the text itself. Raises InputError if it is not split into the dictionary's subwords."""
        check_encoded(text, self.dictionary)
        return text

    def decode(self, text: str) -> str:
        """Return the text itself."""
        return text


class AroundMasks:
    """Tokenizer that encodes a text around each ``<mask>``, and keeps the masks.

    Args:
        of_text: tokenizer of the text between masks
    """

    def __init__(self, of_text: Any) -> None:
        self.of_text = of_text

    def encode(self, text: str) -> str:
        """Encode the text before, between and after the masks."""
        first, *others = text.split(MASK)
        if not others:
            return self.of_text.encode(text)
        return f" {MASK} ".join(self.of_text.encode(part.rstrip()) for part in (first, *others))

    def decode(self, text: str) -> str:
        """Decode with the tokenizer of the text."""
        return self.of_text.decode(text)


class MaskedLMHub(RobertaHubInterface):
    """Interface to a trained masked language model, returned by :meth:`LunaMaskedLM.from_pretrained`.

    A ``<mask>`` in a text becomes the mask token. Methods accept the tokens of one sentence [T] that
    :meth:`encode` returns, a list of such tensors, or a batch padded on the right [B, T]. The result for a
    sentence does not depend on the rest of the batch.

    Raises:
        InputError: the tokenizer belongs to another dictionary
    """

    bpe: Any  # the tokenizer, of which fairseq has no type
    reads: Tuple[Type[Any], str] = (RobertaModel, "masked language model")

    def __init__(self, cfg: Any, task: Any, models: Any):
        super().__init__(cfg, task, models[0])
        self.dictionary: Dictionary = task.source_dictionary
        if self.bpe is None:
            self.bpe = Words(self.dictionary)
        check_tokenizer(self.bpe, self.dictionary)
        self.bpe = AroundMasks(self.bpe)
        self.eval()

    def decode(self, tokens: Tensor) -> Union[str, List[str]]:
        """Decode the tokens of one example, ignoring padding.

        Args:
            tokens: tokens [T]

        Returns:
            the text, or a list of texts if the tokens contain several sentences

        Raises:
            InputError: ``tokens`` is a batch
        """
        if tokens.dim() != 1:
            raise InputError(f"decode takes one sentence [T], not a tensor of shape {tuple(tokens.shape)}")
        tokens = tokens[tokens.ne(self.dictionary.pad())]
        return super().decode(tokens.cpu())

    def extract_features(
        self, tokens: Tokens, return_all_hiddens: bool = False, return_packed: bool = False
    ) -> Any:
        """Compute the features of tokens.

        Args:
            tokens: one or several examples, see the class
            return_all_hiddens: return the features after the embedding and after every layer (default: False,
                the last features)
            return_packed: also return the last P and its mask (default: False)

        Returns:
            features [B, T, C], or a list of features. With ``return_packed``, a tuple of the features, the
            last P [B, L, C], and its mask [B, L], True at masked rows, or None

        Raises:
            InputError: a sequence is longer than the model's positions
        """
        features, extra = self._run(tokens, features_only=True, return_all_hiddens=return_all_hiddens)
        if return_all_hiddens:
            features = [state.transpose(0, 1) for state in extra["inner_states"]]
        if return_packed:
            return features, extra["packed_features"], extra["packed_padding_mask"]
        return features

    def sentence_embedding(self, tokens: Tokens) -> Tensor:
        """Return the mean over the rows of the last P for each example [B, C]."""
        _, packed, mask = self.extract_features(tokens, return_packed=True)
        return mean_of_packed(packed, mask)

    def predict(self, head: str, tokens: Tokens, return_logits: bool = False) -> Tensor:
        """Return log-probabilities, or logits, of classes [B, classes] by the classification head ``head``.

        Examples longer than the model's positions are cut, as ``luna-evaluate-task`` cuts them, and a warning
        says how many.

        Raises:
            InputError: the model has no such head, or there is no example
        """
        rows, positions = self._rows(tokens), self.model.max_positions()
        longer = sum(int(row.ne(self.dictionary.pad()).sum()) > positions for row in rows)
        if longer:
            logger.warning(f"{longer:,} of {len(rows):,} were cut to the model's {positions:,} positions")
        tokens = [row[:positions] for row in rows]
        features, extra = self._run(tokens, features_only=True)
        logits = self.model.classify(head, features, extra)
        return logits if return_logits else F.log_softmax(logits, dim=-1)

    def fill_mask(self, masked_input: str, topk: int = 5) -> List[Tuple[str, float, str]]:
        """Return the most probable tokens for the single ``<mask>`` in a text.

        Returns:
            ``topk`` times (text with the mask filled, probability, token), most probable first

        Raises:
            InputError: not exactly one ``<mask>``
        """
        if masked_input.count(MASK) != 1:
            raise InputError(
                f"fill_mask needs exactly one {MASK} in the text, not {masked_input.count(MASK)}: "
                f"{masked_input!r}"
            )
        tokens = self.encode(masked_input)
        mask = self.dictionary.index(MASK)
        with torch.no_grad(), utils.model_eval(self.model):
            logits, _ = self._run(tokens, masked_tokens=tokens.eq(mask).unsqueeze(0).to(self.device))
        symbols, nspecial = self.dictionary.symbols, self.dictionary.nspecial
        no_words = [number < nspecial or is_filler(symbol) for number, symbol in enumerate(symbols)]
        probabilities = logits[0].softmax(dim=-1)
        probabilities = probabilities.masked_fill(torch.tensor(no_words, device=self.device), -1.0)
        values, indices = probabilities.topk(min(topk, int((probabilities >= 0).sum())))
        target = f" {MASK}" if f" {MASK}" in masked_input else MASK
        filled = []
        for value, index in zip(values.tolist(), indices.tolist()):
            token = self._surface(self.dictionary[index])
            filled.append((masked_input.replace(target, token).strip(), value, token))
        return filled

    def _rows(self, tokens: Tokens) -> List[Tensor]:
        """Return the examples. Raises InputError if there is none."""
        rows = [tokens] if isinstance(tokens, Tensor) and tokens.dim() == 1 else list(tokens)
        if not rows:
            raise InputError("there is no example: give the tokens of one or more")
        return rows

    def _run(self, tokens: Tokens, **options: Any) -> Tuple[Tensor, Dict[str, Any]]:
        batch = data_utils.collate_tokens(self._rows(tokens), pad_idx=self.dictionary.pad())
        return self.model(batch.to(device=self.device), **options)

    def _surface(self, symbol: str) -> str:
        """Return the text of a symbol, with a leading space if the symbol begins a word."""
        text = self.bpe.decode(symbol)
        return f" {text}" if isinstance(self.bpe.of_text, Words) or symbol.startswith("\u2581") else text
