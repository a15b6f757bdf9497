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
    """Tokenizer for data whose words or subwords are already separated by spaces.

    Args:
        dictionary: dictionary of the model.
    """

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary

    def encode(self, text: str) -> str:
        """Return the text unchanged.

        Args:
            text: words or subwords between spaces.

        Raises:
            InputError: The dictionary holds subwords, and the text is not split into them.
        """
        check_encoded(text, self.dictionary)
        return text

    def decode(self, text: str) -> str:
        """Return the text unchanged."""
        return text


class MaskTokenizer:
    """Tokenizer that leaves ``<mask>`` unchanged and encodes the text around each mask.

    Args:
        tokenizer: tokenizer of the text around the masks.

    Example:
        >>> from types import SimpleNamespace
        >>> letters = MaskTokenizer(SimpleNamespace(encode=" ".join))
        >>> letters.encode("ab<mask>cd")
        'a b <mask> c d'
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> str:
        """Encode the text before, between and after the masks.

        Args:
            text: text, which may contain ``<mask>``.

        Returns:
            Pieces and masks, joined by spaces.
        """
        first, *others = text.split(MASK)
        if not others:
            return self.tokenizer.encode(text)
        return f" {MASK} ".join(self.tokenizer.encode(part.rstrip()) for part in (first, *others))

    def decode(self, text: str) -> str:
        """Decode the text with the tokenizer."""
        return self.tokenizer.decode(text)


class MaskedLMHub(RobertaHubInterface):
    """Interface to a trained masked language model, returned by :meth:`LunaMaskedLM.from_pretrained`.

    A ``<mask>`` in a text becomes the mask token. Methods that take tokens accept the tokens [T] of one
    sentence, as returned by ``encode``, a list of such tensors, or a batch [B, T] that is padded on the
    right. The result for a sentence does not depend on the other sentences of the batch.

    Args:
        cfg: configuration of the training.
        task: fairseq task of the training.
        models: list with the model.

    Raises:
        InputError: The tokenizer does not fit the dictionary.

    Example::

        hub = LunaMaskedLM.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        features = hub.extract_features(hub.encode("Hello world."))  # [1, T, C]
    """

    bpe: Any  # the tokenizer, for which fairseq declares no type
    # Class of the models that this interface accepts, and its name in messages.
    supports: Tuple[Type[Any], str] = (RobertaModel, "masked language model")

    def __init__(self, cfg: Any, task: Any, models: Any):
        super().__init__(cfg, task, models[0])
        self.dictionary: Dictionary = task.source_dictionary
        if self.bpe is None:
            self.bpe = Words(self.dictionary)
        check_tokenizer(self.bpe, self.dictionary)
        self.bpe = MaskTokenizer(self.bpe)
        self.eval()

    def decode(self, tokens: Tensor) -> Union[str, List[str]]:
        """Decode the tokens of one example, ignoring padding.

        Args:
            tokens: tokens [T].

        Returns:
            The text, or a list of texts if the tokens contain several sentences.

        Raises:
            InputError: ``tokens`` is a batch.
        """
        if tokens.dim() != 1:
            raise InputError(
                f"expected the tokens of one sentence [T], got a tensor of shape {tuple(tokens.shape)}: "
                "decode the sentences one by one"
            )
        tokens = tokens[tokens.ne(self.dictionary.pad())]
        return super().decode(tokens.cpu())

    def extract_features(
        self, tokens: Tokens, return_all_hiddens: bool = False, return_packed: bool = False
    ) -> Any:
        """Compute the features of tokens.

        Args:
            tokens: tokens of one or several sentences, see the class.
            return_all_hiddens: return the list of features after the embedding and after every layer
                (default: False, only the features after the last layer).
            return_packed: also return the last packed sequence P and its mask (default: False).

        Returns:
            Features [B, T, C], or a list of features. With ``return_packed``, a tuple of the features, the
            last P [B, L, C], and its mask [B, L], True at masked rows, or None if no row is masked.

        Raises:
            InputError: A sequence is longer than the model's positions.
        """
        features, extra = self._run(tokens, features_only=True, return_all_hiddens=return_all_hiddens)
        if return_all_hiddens:
            features = [state.transpose(0, 1) for state in extra["inner_states"]]
        if return_packed:
            return features, extra["packed_features"], extra["packed_padding_mask"]
        return features

    def sentence_embedding(self, tokens: Tokens) -> Tensor:
        """Return the mean over the rows of the last packed sequence P of each sentence.

        Args:
            tokens: tokens of one or several sentences, see the class.

        Returns:
            Vectors [B, C].
        """
        _, packed, mask = self.extract_features(tokens, return_packed=True)
        return mean_of_packed(packed, mask)

    def predict(self, head: str, tokens: Tokens, return_logits: bool = False) -> Tensor:
        """Classify sentences with a classification head.

        Sentences longer than the model's positions are truncated, as in ``luna-evaluate-task``. A warning
        gives their number.

        Args:
            head: name of the classification head.
            tokens: tokens of one or several sentences, see the class.
            return_logits: return logits in place of log-probabilities (default: False).

        Returns:
            Log-probabilities or logits [B, number of classes].

        Raises:
            InputError: The model has no such head, or ``tokens`` is empty.
        """
        sentences, positions = self._sentences(tokens), self.model.max_positions()
        longer = sum(int(sentence.ne(self.dictionary.pad()).sum()) > positions for sentence in sentences)
        if longer:
            logger.warning(
                f"{longer:,} of {len(sentences):,} sentences were truncated to the model's {positions:,} "
                "positions"
            )
        features, extra = self._run([sentence[:positions] for sentence in sentences], features_only=True)
        logits = self.model.classify(head, features, extra)
        return logits if return_logits else F.log_softmax(logits, dim=-1)

    def fill_mask(self, masked_input: str, topk: int = 5) -> List[Tuple[str, float, str]]:
        """Predict the token at the ``<mask>`` of a text.

        Args:
            masked_input: text with exactly one ``<mask>``.
            topk: number of predictions (default: 5).

        Returns:
            A list of tuples (text with the token in place of the mask, probability, token), most probable
            first.

        Raises:
            InputError: The text has no ``<mask>``, or several.
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
        is_no_word = [number < nspecial or is_filler(symbol) for number, symbol in enumerate(symbols)]
        probabilities = logits[0].softmax(dim=-1)
        probabilities = probabilities.masked_fill(torch.tensor(is_no_word, device=self.device), -1.0)
        values, indices = probabilities.topk(min(topk, int((probabilities >= 0).sum())))
        target = f" {MASK}" if f" {MASK}" in masked_input else MASK
        filled = []
        for value, index in zip(values.tolist(), indices.tolist()):
            token = self._surface(self.dictionary[index])
            filled.append((masked_input.replace(target, token).strip(), value, token))
        return filled

    def _sentences(self, tokens: Tokens) -> List[Tensor]:
        """Return the tokens of each sentence.

        Args:
            tokens: tokens of one sentence, a list of such tensors, or a padded batch.

        Raises:
            InputError: The list is empty.
        """
        sentences = [tokens] if isinstance(tokens, Tensor) and tokens.dim() == 1 else list(tokens)
        if not sentences:
            raise InputError("expected tokens of one or more sentences, got an empty list")
        return sentences

    def _run(self, tokens: Tokens, **options: Any) -> Tuple[Tensor, Dict[str, Any]]:
        """Run the model on sentences.

        Args:
            tokens: tokens of one sentence, a list of such tensors, or a padded batch.
            options: further arguments of the model's forward method.

        Returns:
            Results of the forward method.
        """
        batch = data_utils.collate_tokens(self._sentences(tokens), pad_idx=self.dictionary.pad())
        return self.model(batch.to(device=self.device), **options)

    def _surface(self, symbol: str) -> str:
        """Return the text of a symbol, with a leading space if the symbol begins a word."""
        text = self.bpe.decode(symbol)
        return f" {text}" if isinstance(self.bpe.tokenizer, Words) or symbol.startswith("\u2581") else text
