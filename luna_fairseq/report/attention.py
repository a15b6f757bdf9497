"""Attention maps: the attention weights of a model for one text, as named tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.report.recording import READ, Recorded, recorded

MAX_TOKENS = 512


@dataclass
class AttentionMaps(Mapping):
    """Attention weights of all layers for one text, on the CPU, as a mapping from name to tensor.

    Names have the form ``encoder.LAYER.self.MAP``, ``decoder.LAYER.self.MAP`` or ``decoder.LAYER.cross.MAP``.
    Layers are counted from 0. MAP is one of

    - ``pack`` [H, L, S]: weights of pack attention, from each row of the packed sequence P to each token of
      the context. Causal attention has its positive pack weights over time here, which do not sum to 1.
    - ``unpack`` [H, T, L]: weights of unpack attention, from each query token to each row of P.
    - ``read`` [H, T, S]: weights from each query token to each token of the context, the product of unpack
      and pack weights. The pack weights are averaged over the pack heads or, in causal attention, divided by
      the position. Attention without P has only this map.

    H is the number of heads, L the number of rows of P, S the number of context tokens, and T the number of
    query tokens. A Jupyter notebook displays the object as an interactive page.

    Args:
        maps: tensors by name.
        source: tokens of the encoder with </s>. Empty for a model without an encoder.
        target: tokens that the decoder predicts, with </s>. They are the query tokens of
            ``decoder.*.cross``. Empty by default.
        target_input: tokens that the decoder reads to predict ``target``. They are the query tokens of
            ``decoder.*.self``. Empty by default.
        texts: texts to show with the maps, by label, such as "source" and "translation". Empty by default.
        strengths: learned parameters [H] of anchored attention, by attention (``encoder.0.self``) and by name
            ("pack gamma"). Empty by default.

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
        """Return the query tokens and the context tokens of an attention.

        Args:
            name: name of the attention without the map, such as "decoder.0.cross".
        """
        if name.endswith("cross"):
            return self.target, self.source
        tokens = self.source if name.startswith("encoder") else self.target_input
        return tokens, tokens

    def entropy(self, name: str) -> Tensor:
        """Compute the normalised entropy of each head, averaged over the queries.

        Args:
            name: name of the map.

        Returns:
            [H], 0 if every query has a single nonzero weight, and 1 if all weights are equal.
        """
        weights = self.maps[name].float()
        shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        entropy = -(shares * shares.clamp(min=1e-12).log()).sum(dim=-1)
        return entropy.mean(dim=-1) / math.log(max(weights.size(-1), 2))

    def coverage(self, name: str) -> Tensor:
        """Compute the fraction of keys that have the largest weight of at least one query, for each head.

        Args:
            name: name of the map.

        Returns:
            [H], between 0 and 1.
        """
        weights = self.maps[name]
        is_largest = torch.zeros(weights.shape[0], weights.shape[2])
        return is_largest.scatter_(1, weights.argmax(dim=-1), 1.0).mean(dim=-1)

    def _repr_html_(self) -> str:
        from luna_fairseq.report.show import attention_page

        return attention_page([self])._repr_html_()


def attention_maps(hub: Any, text: str, target: Optional[str] = None, beam: int = 5) -> AttentionMaps:
    """Run a model on a text and record its attention weights.

    Args:
        hub: hub interface returned by ``from_pretrained`` of a translation model, a masked language model or
            a causal language model of luna_fairseq or fairseq, or a
            :class:`~luna_fairseq.report.loading.Classifier`.
        text: one line of plain text, at most 512 tokens.
        target: translation to align with the text. If None (default), the model translates the text. Ignored
            by other models than translation models.
        beam: beam size for the translation (default: 5).

    Returns:
        The attention maps of all layers.

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
        with recorded(hub.model) as records:
            symbols, label = hub.classify_text(text)
        return _to_maps(records, symbols, texts={"text": text, "class": label})
    tokens = _check_length(hub.encode(text))
    if not hasattr(hub, "models"):  # Only the interface of masked language models has a single model.
        with recorded(hub.model) as records:
            hub.extract_features(tokens)
        return _to_maps(records, _symbols(hub.task.source_dictionary, tokens), texts={"text": text})
    if hasattr(hub.models[0], "encoder"):
        return _translation_maps(hub, tokens, text, target, beam)
    return _language_model_maps(hub, tokens, text)


def _translation_maps(hub: Any, tokens: Tensor, text: str, target: Optional[str], beam: int) -> AttentionMaps:
    """Record the attention of a translation model while it scores a translation.

    Args:
        hub: hub interface of the model.
        tokens: encoded source [S].
        text: source as plain text.
        target: translation as plain text, or None to translate the source.
        beam: beam size for the translation.

    Returns:
        Attention maps of the source and the translation.
    """
    translation = _translation_tokens(hub, tokens, target, beam)
    decoder_input = _shift(translation)
    with recorded(hub.models[0]) as records:
        _, extra = hub.models[0](
            tokens.unsqueeze(0).to(hub.device),
            torch.tensor([len(tokens)]),
            decoder_input.unsqueeze(0).to(hub.device),
        )
    label = "translation" if target is None else "given translation"
    return _to_maps(
        records or _decoder_alignment(extra),
        _symbols(hub.src_dict, tokens),
        target=_symbols(hub.tgt_dict, translation),
        target_input=_symbols(hub.tgt_dict, decoder_input),
        texts={"source": text, label: hub.decode(translation.cpu())},
    )


def _language_model_maps(hub: Any, tokens: Tensor, text: str) -> AttentionMaps:
    """Record the attention of a causal language model that scores a text.

    Args:
        hub: loaded model, as returned by :func:`luna_fairseq.report.loading.load`.
        tokens: token numbers [T] of the text.
        text: the text, which the page shows.

    Returns:
        Attention maps of the text.
    """
    decoder_input = _shift(tokens)
    with recorded(hub.models[0]) as records:
        hub.models[0](decoder_input.unsqueeze(0).to(hub.device))
    return _to_maps(
        records,
        [],
        target=_symbols(hub.src_dict, tokens),
        target_input=_symbols(hub.src_dict, decoder_input),
        texts={"text": text},
    )


def _shift(tokens: Tensor) -> Tensor:
    """Move the final </s> to the front, because fairseq's decoders begin with </s>."""
    return torch.cat([tokens[-1:], tokens[:-1]])


def _decoder_alignment(extra: Any) -> List[Recorded]:
    """Return the attention to the source that a decoder reports itself, as recurrent decoders do.

    Args:
        extra: second output of the model, a dict with ``attn`` if the decoder reports its attention.

    Returns:
        A list with one record, or an empty list.
    """
    weights = extra.get("attn") if isinstance(extra, dict) else None
    return [Recorded("decoder.0.cross", {READ: weights[0].unsqueeze(1)}, {})] if weights else []


def _translation_tokens(hub: Any, source: Tensor, target: Optional[str], beam: int) -> Tensor:
    """Encode a given translation or, without one, translate the source.

    Args:
        hub: loaded model, as returned by :func:`luna_fairseq.report.loading.load`.
        source: token numbers [S] of the source.
        target: text of the translation, or None.
        beam: beam size.

    Returns:
        Token numbers [T] of the translation.
    """
    if target is None:
        (hypotheses,) = hub.generate([source], beam=beam)
        return hypotheses[0]["tokens"].cpu()
    encoded = hub.apply_bpe(hub.tokenize(target))
    return _check_length(hub.tgt_dict.encode_line(encoded, add_if_not_exist=False).long())


def _check_length(tokens: Tensor) -> Tensor:
    """Return the tokens, or raise InputError if there are more than ``MAX_TOKENS``."""
    if len(tokens) > MAX_TOKENS:
        raise InputError(f"Expected a text of at most {MAX_TOKENS} tokens, got {len(tokens)} tokens.")
    return tokens


def _to_maps(records: List[Recorded], source: List[str], **fields: Any) -> AttentionMaps:
    """Build the attention maps from the records of one run.

    Args:
        records: records of all attention modules, whose batch has one sentence.
        source: tokens of the encoder.
        fields: further fields of :class:`AttentionMaps`.

    Returns:
        The attention maps.

    Raises:
        InputError: There are no records.
    """
    if not records:
        raise InputError("The model has no attention whose weights can be shown. Give another checkpoint.")
    maps = {
        f"{record.name}.{kind}": weights[0].detach().float().cpu()
        for record in records
        for kind, weights in record.weights.items()
    }
    strengths = {
        record.name: {name: value.detach().float().cpu() for name, value in record.strengths.items()}
        for record in records
        if record.strengths
    }
    return AttentionMaps(maps, source, strengths=strengths, **fields)


def _symbols(dictionary: Any, tokens: Tensor) -> List[str]:
    return [dictionary[index] for index in tokens.tolist()]
