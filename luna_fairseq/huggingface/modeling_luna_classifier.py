"""Classifiers on Luna's encoder for Hugging Face's transformers: the fine-tuned heads of a masked language
model, and Long Range Arena's."""

from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from luna_fairseq.huggingface.adapters import activation
from luna_fairseq.huggingface.configuration_luna import LunaConfig, LunaLongConfig
from luna_fairseq.huggingface.modeling_luna import LunaModel, LunaModelOutput, LunaPreTrainedModel
from luna_fairseq.modules.heads import merge_heads, split_heads
from luna_fairseq.ops.softmax import softmax_attention


def mean_of(x: Tensor, mask: Tensor) -> Tensor:
    """Mean [B, C] of x [B, T, C] where ``mask`` [B, T] is 1."""
    kept = mask.unsqueeze(-1).to(x.dtype)
    return (x * kept).sum(dim=1) / kept.sum(dim=1)


def first_token(out: LunaModelOutput) -> Tensor:
    """Vector [B, C] of the first token of each sequence, which padding may precede."""
    x = out.last_hidden_state
    first = out.source_mask.argmax(dim=1)[:, None, None]
    return x.gather(1, first.expand(-1, 1, x.size(2))).squeeze(1)


class AttentionToPacked(nn.Module):
    """Ordinary attention of the first token to P's rows."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        C = config.encoder_embed_dim
        self.num_heads = config.encoder_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(C, C) for _ in range(4))

    def forward(self, first: Tensor, packed: Tensor, mask: Tensor) -> Tensor:
        """[B, C] of the first token [B, C], P [B, L, C] and its mask [B, L], 1 at rows that count."""
        rows = packed.transpose(0, 1)
        q, k, v = (
            split_heads(projection(x), self.num_heads)
            for projection, x in ((self.q_proj, first[None]), (self.k_proj, rows), (self.v_proj, rows))
        )
        return self.out_proj(merge_heads(softmax_attention(q, k, v, mask[:, None, None, :].eq(0))))[0]


class LunaClassificationHead(nn.Module):
    """RoBERTa's head (dropout, dense, activation, dropout, projection) on one vector for each sequence.

    ``config.classifier_reads``: ``first`` (the first token), or of the last P its ``mean``, its ``maximum``,
    or the first token's ``attention`` to it.
    """

    def __init__(self, config: LunaConfig):
        super().__init__()
        C, inner = config.encoder_embed_dim, config.classifier_inner_dim
        self.reads = config.classifier_reads
        if self.reads == "maximum":
            self.in_proj = nn.Linear(C, C)
        elif self.reads == "attention":
            self.attn, self.layer_norm = AttentionToPacked(config), nn.LayerNorm(C)
        self.dense = nn.Linear(C, inner)
        self.activation_fn = activation(config.pooler_activation_fn)
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.out_proj = nn.Linear(inner, config.num_labels)

    def forward(self, out: LunaModelOutput) -> Tensor:
        """Logits [B, classes] of what the encoder returned."""
        x = self.dropout(self.pool(first_token(out), out.packed, out.packed_mask))
        return self.out_proj(self.dropout(self.activation_fn(self.dense(x))))

    def pool(self, first: Tensor, packed: Tensor, mask: Tensor) -> Tensor:
        """[B, C] of the first token [B, C], P [B, L, C] and its mask [B, L]."""
        if self.reads == "mean":
            return mean_of(packed, mask)
        if self.reads == "maximum":
            return self.in_proj(packed).masked_fill(mask.unsqueeze(-1).eq(0), float("-inf")).amax(dim=1)
        if self.reads == "attention":
            return self.layer_norm(self.attn(first, packed, mask))
        return first


class LunaForSequenceClassification(LunaPreTrainedModel):
    """A masked language model's encoder and one of its classification heads."""

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.luna = LunaModel(config)
        self.classifier = LunaClassificationHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        **asked: Optional[bool],
    ) -> SequenceClassifierOutput:
        """As :meth:`LunaModel.forward`; labels [B], numbers where there is one class (regression)."""
        of_encoder = input_ids, attention_mask, position_ids, inputs_embeds
        out = self.luna(*of_encoder, **{**asked, "return_dict": True})
        return self.found(out, self.classifier(out), labels, asked)

    def found(
        self, out: LunaModelOutput, logits: Tensor, labels: Optional[Tensor], asked: Dict[str, Any]
    ) -> Any:
        """What a call returns."""
        loss = None
        if labels is not None and logits.size(-1) == 1:
            loss = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        found = SequenceClassifierOutput(loss, logits, out.hidden_states, out.attentions)
        return found if self.asked(asked)[2] else found.to_tuple()


class LunaPixelEmbedding(nn.Module):
    """A linear map of each pixel's intensity, and perhaps a learned vector in front of them all."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        self.linear = nn.Linear(1, config.encoder_embed_dim)
        self.cls = nn.Parameter(torch.zeros(config.encoder_embed_dim)) if config.prepends_cls else None

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, T, C], or [B, 1 + T, C], of ``pixels`` [B, T]."""
        x = self.linear(pixels.unsqueeze(-1).to(self.linear.weight.dtype))
        return x if self.cls is None else torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)


class LunaLongClassifierHead(nn.Module):
    """Hidden layers and a projection, on one vector for each sequence or on those of a pair."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        inputs = {"": 1, "concat": 2, "nli": 4}[config.pair_combination]
        widths = [config.encoder_embed_dim * inputs] + [config.classifier_out_dim] * config.classifier_layers
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))
        self.activation = activation(config.classifier_activation_fn)
        self.out_proj = nn.Linear(widths[-1], config.num_labels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.out_proj(x)


class LunaForLongSequenceClassification(LunaForSequenceClassification):
    """Long Range Arena's classifier of tokens, of pairs of token sequences, or of pixels.

    ``config.classifier_reads``: ``first``, the ``tokens``' mean, or the last P's ``mean``.
    """

    config_class = LunaLongConfig

    def __init__(self, config: LunaConfig):
        LunaPreTrainedModel.__init__(self, config)
        self.luna = LunaModel(config)
        if config.reads_pixels:
            self.luna.embed_tokens = LunaPixelEmbedding(config)
            self.main_input_name = "pixel_values"
        self.classifier = LunaLongClassifierHead(config)
        self.post_init()

    def forward(  # type: ignore[override]
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        second_input_ids: Optional[Tensor] = None,
        second_attention_mask: Optional[Tensor] = None,
        pixel_values: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        **asked: Optional[bool],
    ) -> SequenceClassifierOutput:
        """As :meth:`LunaModel.forward`; the second sequences of pairs; normalised pixels [B, T] in place of
        tokens. Raises ValueError, too, for pairs of a model of single sequences, or the reverse."""
        if pixel_values is not None:
            inputs_embeds = self.luna.embed_tokens(pixel_values)
        if bool(self.config.pair_combination) != (second_input_ids is not None):
            raise ValueError(
                "the model classifies " + ("pairs" if self.config.pair_combination else "single sequences")
            )
        out = self.luna(input_ids, attention_mask, None, inputs_embeds, **{**asked, "return_dict": True})
        x = self.represent(out)
        if second_input_ids is not None:
            y = self.represent(self.luna(second_input_ids, second_attention_mask, return_dict=True))
            both = [x, y] if self.config.pair_combination == "concat" else [x, y, x * y, x - y]
            x = torch.cat(both, dim=-1)
        return self.found(out, self.classifier(x), labels, asked)

    def represent(self, out: LunaModelOutput) -> Tensor:
        """One vector [B, C] for each sequence."""
        if self.config.classifier_reads == "mean":
            return mean_of(out.packed, out.packed_mask)
        if self.config.classifier_reads == "tokens":
            return mean_of(out.last_hidden_state, out.source_mask)
        return first_token(out)
