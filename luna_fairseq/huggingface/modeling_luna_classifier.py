"""Luna classifiers for Hugging Face's transformers.

:class:`LunaForSequenceClassification` is a masked language model fine-tuned with a classification head.
:class:`LunaForLongSequenceClassification` is a classifier of the Long Range Arena benchmark. Shapes: batch
size B, T (or U) tokens, width C, L vectors in the packed sequence P.
"""

from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from luna_fairseq.huggingface.adapters import get_activation
from luna_fairseq.huggingface.configuration_luna import LunaConfig, LunaLongConfig
from luna_fairseq.huggingface.modeling_luna import LunaModel, LunaModelOutput, LunaPreTrainedModel
from luna_fairseq.modules.heads import merge_heads, split_heads
from luna_fairseq.ops.attention import softmax_attention


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the means [B, C] of vectors [B, T, C], ignoring positions where ``mask`` [B, T] is 0.

    The mean over no positions is 0.
    """
    weights = mask.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def first_hidden_state(out: LunaModelOutput) -> Tensor:
    """Return the last hidden state [B, C] of each sequence's first token, skipping padding on the left."""
    x = out.last_hidden_state
    first = out.source_mask.argmax(dim=1)[:, None, None]
    return x.gather(1, first.expand(-1, 1, x.size(2))).squeeze(1)


class AttentionToPacked(nn.Module):
    """Multi-head attention with the first token as query and the packed sequence P as keys and values."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        C = config.encoder_embed_dim
        self.num_heads = config.encoder_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(C, C) for _ in range(4))

    def forward(self, first: Tensor, packed: Tensor, mask: Tensor) -> Tensor:
        """Attend from the first token of each sequence to the packed sequence P [B, L, C]. Return [B, C].

        ``first`` [B, C] is the hidden state of the token, and ``mask`` [B, L] is 0 at padding of P.
        """
        packed = packed.transpose(0, 1)
        q, k, v = (
            split_heads(projection(x), self.num_heads)
            for projection, x in ((self.q_proj, first[None]), (self.k_proj, packed), (self.v_proj, packed))
        )
        return self.out_proj(merge_heads(softmax_attention(q, k, v, mask[:, None, None, :].eq(0))))[0]


class LunaClassificationHead(nn.Module):
    """RoBERTa's classification head: dropout, dense layer, activation, dropout and output projection.

    ``config.classifier_reads`` selects the vector that represents a sequence:

    - "first": hidden state of the first token.
    - "mean": mean of the vectors of the packed sequence P after the last layer.
    - "maximum": elementwise maximum of the projected vectors of P.
    - "attention": output of attention with the first token as query and P as keys and values.
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
        self.activation_fn = get_activation(config.pooler_activation_fn)
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.out_proj = nn.Linear(inner, config.num_labels)

    def forward(self, out: LunaModelOutput) -> Tensor:
        """Compute the class logits [B, ``config.num_labels``] from the output of the encoder."""
        x = self.dropout(self.pool(first_hidden_state(out), out.packed, out.packed_mask))
        return self.out_proj(self.dropout(self.activation_fn(self.dense(x))))

    def pool(self, first: Tensor, packed: Tensor, mask: Tensor) -> Tensor:
        """Return the vector [B, C] that represents each sequence, selected by ``config.classifier_reads``.

        ``first`` [B, C] is the hidden state of each sequence's first token, ``packed`` the packed sequence P
        [B, L, C], and ``mask`` [B, L] is 0 at padding of P.
        """
        if self.reads == "mean":
            return masked_mean(packed, mask)
        if self.reads == "maximum":
            return self.in_proj(packed).masked_fill(mask.unsqueeze(-1).eq(0), float("-inf")).amax(dim=1)
        if self.reads == "attention":
            return self.layer_norm(self.attn(first, packed, mask))
        return first


class LunaClassifier(LunaPreTrainedModel):
    """Base class that computes the loss and builds the output of Luna classifiers for transformers."""

    def build_output(
        self, out: LunaModelOutput, logits: Tensor, labels: Optional[Tensor], output_options: Dict[str, Any]
    ) -> Union[SequenceClassifierOutput, Tuple[Any, ...]]:
        """Build the return value of ``forward`` from logits [B, classes], with a loss if labels are given.

        For a single logit (regression), the loss is the mean squared error, otherwise the cross-entropy.
        """
        loss = None
        if labels is not None and logits.size(-1) == 1:
            loss = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        output = SequenceClassifierOutput(loss, logits, out.hidden_states, out.attentions)
        return output if self.resolve_output_options(output_options)[2] else output.to_tuple()


class LunaForSequenceClassification(LunaClassifier):
    """Luna encoder with a classification head, fine-tuned from a masked language model.

    ``config.num_labels`` is the number of classes, or 1 for regression.

    Example:
        >>> config = LunaConfig(vocab_size=20, hidden_size=8, encoder_layers=1, encoder_attention_heads=2,
        ...                     encoder_projected_attention_heads=2, classifier_reads="first", num_labels=3,
        ...                     classifier_inner_dim=8, pooler_activation_fn="tanh", pooler_dropout=0.0)
        >>> LunaForSequenceClassification(config)(torch.tensor([[4, 5, 6]])).logits.shape
        torch.Size([1, 3])
    """

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
        **output_options: Optional[bool],
    ) -> Union[SequenceClassifierOutput, Tuple[Any, ...]]:
        """Compute logits [B, ``config.num_labels``], and a loss if ``labels`` [B] are given.

        Labels are classes or regression targets. :meth:`LunaModel.forward` describes the other arguments.
        """
        inputs = input_ids, attention_mask, position_ids, inputs_embeds
        out = self.luna(*inputs, **{**output_options, "return_dict": True})
        return self.build_output(out, self.classifier(out), labels, output_options)


class LunaPixelEmbedding(nn.Module):
    """Linear embedding of pixels [B, T], preceded by a class token if ``config.prepends_cls`` is True."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        self.padding_idx = config.pad_token_id
        self.linear = nn.Linear(1, config.encoder_embed_dim)
        self.cls = nn.Parameter(torch.zeros(config.encoder_embed_dim)) if config.prepends_cls else None

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.linear(pixels.unsqueeze(-1).to(self.linear.weight.dtype))
        return x if self.cls is None else torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)


class LunaLongClassifierHead(nn.Module):
    """Classification head for Long Range Arena: hidden layers and an output projection.

    The input for a pair of sequences with vectors x and y is [x, y] if ``config.pair_combination`` is
    "concat", and [x, y, x * y, x - y] if it is "nli".
    """

    def __init__(self, config: LunaConfig):
        super().__init__()
        inputs = {"": 1, "concat": 2, "nli": 4}[config.pair_combination]
        widths = [config.encoder_embed_dim * inputs] + [config.classifier_out_dim] * config.classifier_layers
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))
        self.activation = get_activation(config.classifier_activation_fn)
        self.out_proj = nn.Linear(widths[-1], config.num_labels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.out_proj(x)


class LunaForLongSequenceClassification(LunaClassifier):
    """Luna classifier for Long Range Arena that classifies sequences, pairs of sequences, or images.

    ``config.classifier_reads`` selects the vector that represents a sequence:

    - "first": hidden state of the first token.
    - "tokens": mean of the hidden states of all tokens.
    - "mean": mean of the vectors of the packed sequence P after the last layer.
    """

    config_class = LunaLongConfig

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        if config.reads_pixels:
            self.main_input_name = "pixel_values"
        self.luna = LunaModel(config, LunaPixelEmbedding(config) if config.reads_pixels else None)
        self.classifier = LunaLongClassifierHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        second_input_ids: Optional[Tensor] = None,
        second_attention_mask: Optional[Tensor] = None,
        pixel_values: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        **output_options: Optional[bool],
    ) -> Union[SequenceClassifierOutput, Tuple[Any, ...]]:
        """Compute logits [B, ``config.num_labels``], and the mean cross-entropy if labels are given.

        Args:
            input_ids: token ids [B, T].
            attention_mask: mask [B, T], 1 at tokens and 0 at padding. If None, the padding id is masked.
            second_input_ids: token ids [B, U] of the second sequences, for a model of pairs.
            second_attention_mask: mask [B, U] of the second sequences.
            pixel_values: normalized intensities [B, T] of images, in place of ``input_ids``.
            inputs_embeds: input embeddings [B, T, C] in place of ``input_ids``.
            labels: class indices [B].
            **output_options: the options of :meth:`LunaModel.forward`.
        """
        if pixel_values is not None:
            inputs_embeds = self.luna.embed_tokens(pixel_values)
        if bool(self.config.pair_combination) != (second_input_ids is not None):
            if self.config.pair_combination:
                raise ValueError("Expected pairs of sequences, got single sequences. Pass second_input_ids.")
            raise ValueError("Expected single sequences, got pairs. Leave out second_input_ids.")
        options = {**output_options, "return_dict": True}
        out = self.luna(input_ids, attention_mask, None, inputs_embeds, **options)
        x = self.pool(out)
        if second_input_ids is not None:
            y = self.pool(self.luna(second_input_ids, second_attention_mask, return_dict=True))
            joined = [x, y] if self.config.pair_combination == "concat" else [x, y, x * y, x - y]
            x = torch.cat(joined, dim=-1)
        return self.build_output(out, self.classifier(x), labels, output_options)

    def pool(self, out: LunaModelOutput) -> Tensor:
        """Return the vector [B, C] that represents each sequence, selected by ``config.classifier_reads``."""
        if self.config.classifier_reads == "mean":
            return masked_mean(out.packed, out.packed_mask)
        if self.config.classifier_reads == "tokens":
            return masked_mean(out.last_hidden_state, out.source_mask)
        return first_hidden_state(out)
