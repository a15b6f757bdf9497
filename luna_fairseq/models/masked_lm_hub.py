"""Python interface to a trained masked language model.

The interface extends RoBERTa's hub interface with batches of sentences and Luna's packed sequence P. Shapes:
B sentences of T tokens, L vectors in P, width C.
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
from luna_fairseq.models.classification_heads import classify, mean_pool
from luna_fairseq.models.tokenizers import join_lines
from luna_fairseq.text.pieces import MASK, WORD_MARK, check_encoded, check_tokenizer, is_filler

logger = logging.getLogger(__name__)

Tokens = Union[Tensor, Sequence[Tensor]]


class IdentityTokenizer:
    """Tokenizer for text that already consists of words or subwords."""

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary

    def encode(self, text: str) -> str:
        """Return the text, with ``<mask>`` between spaces.

        Raise InputError for plain words if the dictionary has subwords.
        """
        parts = text.split(MASK)
        check_encoded(" ".join(parts), self.dictionary)
        return f" {MASK} ".join(parts)

    def decode(self, text: str) -> str:
        return text


class MaskTokenizer:
    """Tokenizer that keeps ``<mask>`` as one token, and applies another tokenizer to the text around it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> str:
        """Encode a text. Line breaks count as spaces."""
        text = join_lines(text, self.tokenizer)
        if MASK not in text or isinstance(self.tokenizer, IdentityTokenizer):
            return self.tokenizer.encode(text)
        return f" {MASK} ".join(self.tokenizer.encode(part.rstrip()) for part in text.split(MASK))

    def decode(self, text: str) -> str:
        return self.tokenizer.decode(text)


class MaskedLMHub(RobertaHubInterface):
    """Interface to a trained masked language model, returned by :meth:`LunaMaskedLM.from_pretrained`.

    ``encode`` converts ``<mask>`` in a text to the mask token. The methods accept ``tokens`` as one sentence
    [T], as returned by ``encode``, as a list of sentences, or as a batch [B, T] padded on the right. The
    result for a sentence does not depend on the other sentences in the batch.

    Example::

        hub = LunaMaskedLM.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        features = hub.extract_features(hub.encode("Hello world."))  # [1, T, C]
    """

    bpe: Any  # the tokenizer, for which fairseq declares no type
    # Class of the models that this interface accepts, and the name of the class in messages.
    supports: Tuple[Type[Any], str] = (RobertaModel, "masked language model")

    def __init__(self, cfg: Any, task: Any, models: Any):
        super().__init__(cfg, task, models[0])
        self.dictionary: Dictionary = task.source_dictionary
        if self.bpe is None:
            self.bpe = IdentityTokenizer(self.dictionary)
        check_tokenizer(self.bpe, self.dictionary, options=cfg.bpe)
        self.bpe = MaskTokenizer(self.bpe)
        self.eval()

    def decode(self, tokens: Tensor) -> Union[str, List[str]]:
        """Decode tokens [T] to a text, or to a list if they contain several texts. Padding is ignored."""
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
        """Compute the hidden states [B, T, C] of the input tokens after the last layer.

        With ``return_all_hiddens``, return a list: the hidden states before the first layer and after each
        layer. With ``return_packed``, also return the packed sequence P [B, L, C] after the last layer, and
        its padding mask [B, L]. The mask is None if P has no padding.
        """
        features, extra = self._run_model(tokens, features_only=True, return_all_hiddens=return_all_hiddens)
        if return_all_hiddens:
            features = [state.transpose(0, 1) for state in extra["inner_states"]]
        if return_packed:
            if "packed_features" not in extra:
                raise InputError(
                    f"{type(self.model).__name__} has no packed sequence P, which return_packed and "
                    "sentence_embedding return: use the features of the tokens"
                )
            return features, extra["packed_features"], extra["packed_padding_mask"]
        return features

    def sentence_embedding(self, tokens: Tokens) -> Tensor:
        """Compute one vector per sentence [B, C], the mean of the packed sequence P after the last layer."""
        _, packed, mask = self.extract_features(tokens, return_packed=True)
        return mean_pool(packed, mask)

    def predict(self, head: str, tokens: Tokens, return_logits: bool = False) -> Tensor:
        """Return log-probabilities or logits [B, classes] of the classification head named ``head``.

        The result of a head with one output (regression) is always the output itself, [B, 1].
        Sentences that exceed the model's maximum length are truncated with a warning, as in
        ``luna-evaluate-task``.
        """
        sentences, positions = self._split_batch(tokens), self.model.max_positions()
        longer = sum(int(sentence.ne(self.dictionary.pad()).sum()) > positions for sentence in sentences)
        if longer:
            logger.warning(
                f"{longer:,} of {len(sentences):,} sentences were truncated to the model's {positions:,} "
                "positions"
            )
        truncated = [sentence[:positions] for sentence in sentences]
        features, extra = self._run_model(truncated, features_only=True)
        logits = classify(self.model, head, features, extra)
        return logits if return_logits or logits.size(-1) == 1 else F.log_softmax(logits, dim=-1)

    def fill_mask(self, masked_input: str, topk: int = 5) -> List[Tuple[str, float, str]]:
        """Predict the token at the only ``<mask>`` in a text.

        Return ``topk`` tuples (text with the mask replaced, probability, token), most probable first.
        """
        if masked_input.count(MASK) != 1:
            raise InputError(
                f"fill_mask needs exactly one {MASK} in the text, not {masked_input.count(MASK)}: "
                f"{masked_input!r}"
            )
        tokens = self.encode(masked_input)
        mask = self.dictionary.index(MASK)
        with torch.no_grad(), utils.model_eval(self.model):
            logits, _ = self._run_model(tokens, masked_tokens=tokens.eq(mask).unsqueeze(0).to(self.device))
        symbols, nspecial = self.dictionary.symbols, self.dictionary.nspecial
        is_no_word = [number < nspecial or is_filler(symbol) for number, symbol in enumerate(symbols)]
        probabilities = logits[0].softmax(dim=-1)
        probabilities = probabilities.masked_fill(torch.tensor(is_no_word, device=self.device), -1.0)
        values, indices = probabilities.topk(min(topk, int((probabilities >= 0).sum())))
        target = f" {MASK}" if f" {MASK}" in masked_input else MASK
        filled = []
        for value, index in zip(values.tolist(), indices.tolist()):
            token = self._decode_symbol(self.dictionary[index])
            filled.append((masked_input.replace(target, token).strip(), value, token))
        return filled

    def _split_batch(self, tokens: Tokens) -> List[Tensor]:
        """Split tokens into a list with one tensor [T] per sentence. A tensor may contain padding."""
        sentences = [tokens] if isinstance(tokens, Tensor) and tokens.dim() == 1 else list(tokens)
        if not sentences:
            raise InputError("expected tokens of one or more sentences, got an empty list")
        return sentences

    def _run_model(self, tokens: Tokens, **options: Any) -> Tuple[Tensor, Dict[str, Any]]:
        """Collate sentences into a padded batch, and return the model's output for this batch."""
        batch = data_utils.collate_tokens(self._split_batch(tokens), pad_idx=self.dictionary.pad())
        return self.model(batch.to(device=self.device), **options)

    def _decode_symbol(self, symbol: str) -> str:
        """Convert a dictionary symbol to plain text. A symbol that begins a word gets a leading space."""
        text = self.bpe.decode(symbol)
        begins_word = isinstance(self.bpe.tokenizer, IdentityTokenizer) or symbol.startswith(WORD_MARK)
        return f" {text}" if begins_word else text
