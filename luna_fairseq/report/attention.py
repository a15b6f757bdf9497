"""Attention maps: the attention weights of a model for one text, as named tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.models.tokenizers import first_token
from luna_fairseq.report.recording import READ, AttentionRecord, record_attention

MAX_TOKENS = 512


@dataclass
class AttentionMaps(Mapping):
    """Attention weights of all layers for one text, on the CPU, as a mapping from name to tensor.

    Jupyter notebooks display the object as an interactive page. A name has the form
    ``encoder.LAYER.self.MAP``, ``decoder.LAYER.self.MAP`` or ``decoder.LAYER.cross.MAP``. LAYER is the
    zero-based layer index. MAP is one of:

    - ``pack`` [H, L, S]: weights of pack attention, from each of the L vectors of the packed sequence P to
      each of the S context tokens. In causal attention, these are positive numbers that do not sum to 1.
    - ``unpack`` [H, T, L]: weights of unpack attention, from each of the T query tokens to each vector of P.
    - ``read`` [H, T, S]: resulting weights from each query token to each context token, the product of the
      unpack weights and the pack weights, averaged over the pack heads. Causal attention takes the causal
      (decayed) mean over the positions. Attention modules without P have only this map.

    H is the number of heads.

    Args:
        maps: attention weights, keyed by name.
        source: source tokens, including </s>; empty for a model without an encoder.
        target: tokens predicted by the decoder, including </s>, which are the query tokens of
            ``decoder.*.cross``.
        target_input: input tokens of the decoder when it predicts ``target``, which are the query tokens of
            ``decoder.*.self``.
        texts: texts to show with the maps, keyed by label, such as "source" and "translation".
        strengths: learned parameters of anchored attention (Luna attention with a bias toward nearby tokens),
            [H], keyed by attention and parameter, such as ``strengths["encoder.0.self"]["pack gamma"]``.

    Example:
        >>> uniform = torch.full((1, 3, 4), 1 / 4)
        >>> maps = AttentionMaps({"encoder.0.self.pack": uniform}, ["a", "b", "c", "</s>"])
        >>> maps.entropy("encoder.0.self.pack")
        tensor([1.])
    """

    maps: Dict[str, Tensor]
    source: List[str]
    target: List[str] = field(default_factory=list)
    target_input: List[str] = field(default_factory=list)
    texts: Dict[str, str] = field(default_factory=dict)
    strengths: Dict[str, Dict[str, Tensor]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.maps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)

    def tokens(self, name: str) -> Tuple[List[str], List[str]]:
        """Return the query and the context tokens of an attention module, such as "decoder.0.cross"."""
        if name.endswith("cross"):
            return self.target, self.source
        tokens = self.source if name.startswith("encoder") else self.target_input
        return tokens, tokens

    def entropy(self, name: str) -> Tensor:
        """Return the normalized entropy [H] of each head of a map, averaged over the queries.

        The entropy is 0 if every query has a single nonzero weight, and 1 if all weights are equal.
        """
        weights = self.maps[name].float()
        shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        entropy = -(shares * shares.clamp(min=1e-12).log()).sum(dim=-1)
        return entropy.mean(dim=-1) / math.log(max(weights.size(-1), 2))

    def coverage(self, name: str) -> Tensor:
        """Return the fraction [H] of a map's keys that receive the largest weight of at least one query."""
        weights = self.maps[name]
        is_largest = torch.zeros(weights.shape[0], weights.shape[2])
        return is_largest.scatter_(1, weights.argmax(dim=-1), 1.0).mean(dim=-1)

    def _repr_html_(self) -> str:
        from luna_fairseq.report.show import attention_page

        return attention_page([self])._repr_html_()


def attention_maps(hub: Any, text: str, target: Optional[str] = None, beam: int = 5) -> AttentionMaps:
    """Run a model on a text and return the attention maps of all layers.

    Args:
        hub: hub interface from ``from_pretrained`` of a model of luna_fairseq or fairseq, or a
            :class:`~luna_fairseq.report.loading.Classifier`.
        text: one line of plain text, at most 512 tokens.
        target: translation to show with the text (default: the model's own translation).
        beam: beam size for the translation.

    Raises:
        InputError: The text is empty or too long, or the model has no attention weights to show.

    Example:
        >>> from luna_fairseq.models import LunaModel
        >>> hub = LunaModel.from_pretrained("checkpoints/luna", "checkpoint_best.pt")  # doctest: +SKIP
        >>> attention_maps(hub, "Ein Hund läuft.")["decoder.2.cross.read"].shape  # doctest: +SKIP
        torch.Size([4, 6, 5])
    """
    if not text.strip():
        raise InputError("Expected a sentence, got an empty text.")
    if hasattr(hub, "classify_text"):
        with record_attention(hub.model) as records:
            symbols, label = hub.classify_text(text, MAX_TOKENS)
        return _build_maps(records, symbols, texts={"text": text, "class": label})
    tokens = _check_length(hub.encode(text))
    if not hasattr(hub, "models"):  # Only the hub interface of masked language models has a single model.
        with record_attention(hub.model) as records:
            hub.extract_features(tokens)
        return _build_maps(records, _symbols(hub.task.source_dictionary, tokens), texts={"text": text})
    if hasattr(hub.models[0], "encoder"):
        return _translation_maps(hub, tokens, text, target, beam)
    return _language_model_maps(hub, tokens, text)


def _translation_maps(hub: Any, tokens: Tensor, text: str, target: Optional[str], beam: int) -> AttentionMaps:
    """Return a translation model's attention maps for the source ``tokens``, encoded from ``text``.

    The target is ``target`` or, if that is None, the model's own translation.
    """
    translation = _encode_or_translate(hub, tokens, target, beam)
    decoder_input = _shift_right(translation)
    with record_attention(hub.models[0]) as records:
        _, extra = hub.models[0](
            tokens.unsqueeze(0).to(hub.device),
            torch.tensor([len(tokens)]),
            decoder_input.unsqueeze(0).to(hub.device),
        )
    label = "translation" if target is None else "given translation"
    return _build_maps(
        records or _decoder_alignment(extra),
        _symbols(hub.src_dict, tokens),
        target=_symbols(hub.tgt_dict, translation),
        target_input=_symbols(hub.tgt_dict, decoder_input),
        texts={"source": text, label: hub.decode(translation.cpu())},
    )


def _language_model_maps(hub: Any, tokens: Tensor, text: str) -> AttentionMaps:
    """Return the attention maps of a causal language model for ``tokens``, which encode ``text``."""
    decoder_input = torch.cat([tokens.new_tensor([first_token(hub.task)]), tokens[:-1]])
    with record_attention(hub.models[0]) as records:
        hub.models[0](decoder_input.unsqueeze(0).to(hub.device))
    return _build_maps(
        records,
        [],
        target=_symbols(hub.src_dict, tokens),
        target_input=_symbols(hub.src_dict, decoder_input),
        texts={"text": text},
    )


def _shift_right(tokens: Tensor) -> Tensor:
    """Move the final </s> of a sentence to the front, where fairseq's decoder expects it."""
    return torch.cat([tokens[-1:], tokens[:-1]])


def _decoder_alignment(extra: Any) -> List[AttentionRecord]:
    """Return a list with the cross-attention weights in a decoder's extra outputs, or [] if it has none."""
    weights = extra.get("attn") if isinstance(extra, dict) else None
    return [AttentionRecord("decoder.0.cross", {READ: weights[0].unsqueeze(1)}, {})] if weights else []


def _encode_or_translate(hub: Any, source: Tensor, target: Optional[str], beam: int) -> Tensor:
    """Return the token ids of ``target``, or of the model's own translation if ``target`` is None."""
    if target is None:
        (hypotheses,) = hub.generate([source], beam=beam)
        return hypotheses[0]["tokens"].cpu()
    if hasattr(hub, "encode_target"):
        return _check_length(hub.encode_target(target))
    encoded = hub.apply_bpe(hub.tokenize(target))  # fairseq's own hub interface
    return _check_length(hub.tgt_dict.encode_line(encoded, add_if_not_exist=False).long())


def _check_length(tokens: Tensor) -> Tensor:
    """Return the tokens, or raise InputError if there are more than 512 (``MAX_TOKENS``)."""
    if len(tokens) > MAX_TOKENS:
        raise InputError(f"Expected a text of at most {MAX_TOKENS} tokens, got {len(tokens)} tokens.")
    return tokens


def _build_maps(records: List[AttentionRecord], source: List[str], **fields: Any) -> AttentionMaps:
    """Build an :class:`AttentionMaps` from attention records. ``fields`` are other arguments of the class."""
    if not records:
        raise InputError("The model has no attention whose weights can be shown. Give another checkpoint.")
    maps = {
        f"{record.name}.{kind}": weights[0].detach().float().cpu()
        for record in records
        for kind, weights in record.weights.items()
    }
    for name, weights in maps.items():
        if not weights.isfinite().all():
            raise InputError(
                f"The attention weights of {name} are NaN or infinite: the training has diverged. Give an "
                "earlier checkpoint."
            )
    strengths = {
        record.name: {name: value.detach().float().cpu() for name, value in record.strengths.items()}
        for record in records
        if record.strengths
    }
    return AttentionMaps(maps, source, strengths=strengths, **fields)


def _symbols(dictionary: Any, tokens: Tensor) -> List[str]:
    return [dictionary[index] for index in tokens.tolist()]
