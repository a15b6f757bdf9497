"""``attention_maps(model, "text")``: what each attention of a model weighs in a text, as named tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.report.recording import READ, Recorded, recorded

MOST_TOKENS = 512


@dataclass
class AttentionMaps(Mapping):
    """Weights by name, on the CPU, of one text; in a notebook it shows itself.

    Names are ``encoder.LAYER.self.MAP``, ``decoder.LAYER.self.MAP`` and ``decoder.LAYER.cross.MAP``, layers
    from 0, with

    - ``pack`` [H, L, S]: what each row of P takes of each token. In causal attention these are its pack
      weights over time, which are no shares but positive numbers.
    - ``unpack`` [H, T, L]: what each token takes of each row of P.
    - ``read`` [H, T, S]: what each token takes of each token in all: unpack weights times pack weights, in
      ``encoder.*`` and ``decoder.*.cross`` with the mean over the pack heads, as alignments are; in causal
      attention divided by the position. Attentions without P have this one only.

    H heads, L rows of P, S tokens attended to, T tokens that attend.

    Attributes:
        maps: the tensors.
        source: tokens of the encoder, </s> included; of a model without encoder, none.
        target: tokens that the decoder produces, </s> included; in ``decoder.*.cross`` they attend.
        target_input: tokens that the decoder reads when it produces these; in ``decoder.*.self`` they attend.
        texts: what to say of the text: "source", "translation", "class".
        strengths: what anchored attention has learned, by ``encoder.LAYER.self`` and so on, then by name:
        gamma of pack and unpack attention and of the diagonal, its ratio, the gate of the look-up [H].
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
        """The tokens that attend, and those attended to, of an attention such as "decoder.0.cross"."""
        if name.endswith("cross"):
            return self.target, self.source
        both = self.source if name.startswith("encoder") else self.target_input
        return both, both

    def entropy(self, name: str) -> Tensor:
        """Of each head, the mean entropy of the map's rows [H]: 0 where each weighs one, 1 if all alike."""
        weights = self.maps[name].float()
        shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        entropy = -(shares * shares.clamp(min=1e-12).log()).sum(dim=-1)
        return entropy.mean(dim=-1) / math.log(max(weights.size(-1), 2))

    def coverage(self, name: str) -> Tensor:
        """Of each head, the share of what is attended to that is some row's largest weight [H]."""
        weights = self.maps[name]
        largest = torch.zeros(weights.shape[0], weights.shape[2]).scatter_(1, weights.argmax(dim=-1), 1.0)
        return largest.mean(dim=-1)

    def _repr_html_(self) -> str:
        from luna_fairseq.report.show import attention_page

        return attention_page([self])._repr_html_()


def attention_maps(hub: Any, text: str, target: Optional[str] = None, beam: int = 5) -> AttentionMaps:
    """Attention of a model to one text.

    Args:
        hub: what ``from_pretrained`` returns: of a translation, masked language or causal language model,
            ours or fairseq's; or a :class:`Classifier`.
        text: one line of plain text.
        target: of translation, the translation to look at (default: the model's own).
        beam: beam size of that translation.

    Raises:
        InputError: there is no text, or too much; the model has no attention whose weights can be shown
    """
    if not text.strip():
        raise InputError("there is no text to look at: give a sentence")
    if hasattr(hub, "classify_text"):
        with recorded(hub.model) as found:
            symbols, label = hub.classify_text(text)
        return _maps(found, symbols, texts={"text": text, "class": label})
    tokens = _checked(hub.encode(text))
    if not hasattr(hub, "models"):  # a masked language model's
        with recorded(hub.model) as found:
            hub.extract_features(tokens)
        return _maps(found, _symbols(hub.task.source_dictionary, tokens), texts={"text": text})
    return _of_decoder(hub, tokens, text, target, beam)


def _of_decoder(hub: Any, tokens: Tensor, text: str, target: Optional[str], beam: int) -> AttentionMaps:
    """Of a translation model, or of a causal language model, which reads ``tokens`` as its own text."""
    model, translates = hub.models[0], hasattr(hub.models[0], "encoder")
    produced = _target(hub, tokens, target, beam) if translates else tokens
    shifted = torch.cat([produced[-1:], produced[:-1]])  # fairseq's decoders begin with </s>
    dictionary, read = hub.tgt_dict if translates else hub.src_dict, shifted.unsqueeze(0).to(hub.device)
    decoded = {"target": _symbols(dictionary, produced), "target_input": _symbols(dictionary, shifted)}
    if not translates:
        with recorded(model) as found:
            model(read)
        return _maps(found, [], texts={"text": text}, **decoded)
    with recorded(model) as found:
        _, extra = model(tokens.unsqueeze(0).to(hub.device), torch.tensor([len(tokens)]), read)
    own = "translation" if target is None else "given translation"
    texts = {"source": text, own: hub.decode(produced.cpu())}
    return _maps(found or _alignment(extra), _symbols(hub.src_dict, tokens), texts=texts, **decoded)


def _alignment(extra: Any) -> List[Recorded]:
    """What a decoder says itself of its attention to the source, as a recurrent one has no layers to ask."""
    weights = extra.get("attn") if isinstance(extra, dict) else None
    return [Recorded("decoder.0.cross", {READ: weights[0].unsqueeze(1)}, {})] if weights else []


def _target(hub: Any, source: Tensor, target: Optional[str], beam: int) -> Tensor:
    if target is None:
        (hypotheses,) = hub.generate([source], beam=beam)
        return hypotheses[0]["tokens"].cpu()
    prepared = hub.apply_bpe(hub.tokenize(target))
    return _checked(hub.tgt_dict.encode_line(prepared, add_if_not_exist=False).long())


def _checked(tokens: Tensor) -> Tensor:
    if len(tokens) > MOST_TOKENS:
        raise InputError(
            f"the text has {len(tokens)} tokens: maps of more than {MOST_TOKENS} cannot be looked at"
        )
    return tokens


def _maps(found: List[Recorded], source: List[str], **parts: Any) -> AttentionMaps:
    if not found:
        raise InputError("the model has no attention whose weights can be shown")
    maps = {
        f"{one.name}.{kind}": weights[0].detach().float().cpu()
        for one in found
        for kind, weights in one.weights.items()
    }
    strengths = {
        one.name: {name: value.detach().float().cpu() for name, value in one.strengths.items()}
        for one in found
        if one.strengths
    }
    return AttentionMaps(maps, source, strengths=strengths, **parts)


def _symbols(dictionary: Any, tokens: Tensor) -> List[str]:
    return [dictionary[index] for index in tokens.tolist()]
