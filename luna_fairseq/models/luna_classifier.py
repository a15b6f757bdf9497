"""Classifier of long sequences for Long Range Arena (section 4.1 of the paper), and its named architectures.

The encoder consists of Luna layers, or of Transformer layers for comparison. Shapes: B sequences of T tokens
or pixels, width C.
"""

from argparse import Namespace
from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq.models import register_model
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, encoder_sizes, register_architectures
from luna_fairseq.models.bases import PluginModel
from luna_fairseq.models.classification_heads import mean_pool
from luna_fairseq.models.fairseq_encoder import FairseqLunaEncoder
from luna_fairseq.models.fairseq_layers import activation_function
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_classifier_config import LunaClassifierConfig
from luna_fairseq.models.sequence_encoder import PixelEmbedding, TransformerSequenceEncoder

# The output P of a layer depends only on parameters with these name prefixes.
_FEEDS_PACKED = ("self_attn.pack_", "packed_layer_norm.")


@register_model("lra", dataclass=LunaClassifierConfig)
class LunaClassifier(PluginModel):
    """Classifier of long sequences of tokens or pixels. With ``pairs``, it classifies pairs of sequences.

    An encoder maps each sequence to a single vector, and a feed-forward network classifies the vector.

    Example:
        >>> from fairseq.data import Dictionary
        >>> task = Namespace(source_dictionary=Dictionary(), pairs=False)
        >>> cfg = LunaClassifierConfig(encoder_embed_dim=16, encoder_layers=1, sentence_class_num=10)
        >>> model = LunaClassifier.build_model(cfg, task)
        >>> model(torch.tensor([[0, 3, 3, 2]])).shape
        torch.Size([1, 10])
    """

    def __init__(self, args: Any, encoder: nn.Module, pairs: bool = False):
        super().__init__()
        self.args = args
        self.encoder = encoder
        self.pairs = pairs
        width = args.encoder_embed_dim
        if pairs:
            width *= {"concat": 2, "nli": 4}[args.pair_combination]
        widths = [width] + [args.classifier_out_dim] * args.classifier_layers
        self.classifier = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))
        self.classifier_activation = activation_function(args.classifier_activation_fn)
        self.sentence_projection_layer = nn.Linear(widths[-1], args.sentence_class_num, bias=False)
        if args.apply_bert_init:
            self.apply(init_bert_params)
            if args.layer_type == "luna":
                nn.init.normal_(encoder.packed_embedding.weight, std=0.02)
        if args.use_p:
            self._freeze_unread_parameters()

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LunaClassifier":
        """Build a model for a task with the attributes ``source_dictionary`` (None for pixels) and ``pairs``.

        Raises InputError if options are invalid or contradict each other.
        """
        args = Namespace(**flat_options(cfg, LunaClassifierConfig()))
        check_classifier(args, "image" if task.source_dictionary is None else "text")
        return cls(args, build_encoder(args, task.source_dictionary), task.pairs)

    def _freeze_unread_parameters(self) -> None:
        """Freeze the last layer norm and the parameters of the last layer that do not affect P.

        The classifier reads only P, and distributed training fails for parameters without gradient.
        """
        if self.encoder.layer_norm is not None:
            self.encoder.layer_norm.requires_grad_(False)
        if self.args.tie_layer_weights and self.args.encoder_layers > 1:
            return
        for name, parameter in self.encoder.layers[-1].named_parameters():
            shared_norm = self.args.encoder_normalize_before and name.startswith("self_attn_layer_norm.")
            parameter.requires_grad_(shared_norm or name.startswith(_FEEDS_PACKED))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        src1_tokens: Optional[Tensor] = None,
        src1_lengths: Optional[Tensor] = None,
        all_outputs: bool = False,
    ) -> Tensor:
        """Compute the class logits [B, classes] of B sequences or pairs of sequences.

        Args:
            src_tokens: tokens [B, T], padded on the right, or pixel intensities [B, T].
            src_lengths: ignored, because lengths are computed from ``src_tokens``.
            src1_tokens: second sequence of each pair, if the model classifies pairs.
            src1_lengths: ignored.
            all_outputs: compute the outputs of all tokens in the last layer, for attention maps. By default,
                only the outputs that the classifier uses are computed.
        """
        if self.pairs != (src1_tokens is not None):
            kinds = "single sequences", "pairs of sequences"
            model, data = kinds[self.pairs], kinds[not self.pairs]
            raise InputError(
                f"the model classifies {model}, the data has {data}: train on data of the same kind"
            )
        x = self.represent(src_tokens, all_outputs)
        if src1_tokens is not None:
            y = self.represent(src1_tokens, all_outputs)
            parts = [x, y] if self.args.pair_combination == "concat" else [x, y, x * y, x - y]
            x = torch.cat(parts, dim=-1)
        for layer in self.classifier:
            x = self.classifier_activation(layer(x))
        return self.sentence_projection_layer(x)

    def represent(self, src_tokens: Tensor, all_outputs: bool = False) -> Tensor:
        """Encode each sequence [B, T] of tokens or pixels as one vector [B, C].

        Depending on the options, the vector is the output for the first token, the mean of the outputs for
        all tokens, or the mean of the packed sequence P. With ``all_outputs``, the last layer computes the
        outputs for all tokens even if the vector does not need them.
        """
        groups = min(self.args.length_groups, len(src_tokens))
        if groups == 1 or all_outputs:
            return self.encode(src_tokens, all_outputs)
        is_real = src_tokens.ne(self.encoder.embed_tokens.padding_idx)
        lengths, order = is_real.sum(dim=1).sort(descending=True)
        parts = zip(order.tensor_split(groups), lengths.cpu().tensor_split(groups))
        vectors = [self.encode(src_tokens[rows, : int(longest[0])]) for rows, longest in parts]
        return torch.cat(vectors).index_select(0, order.argsort())

    def encode(self, src_tokens: Tensor, all_outputs: bool = False) -> Tensor:
        """Return the vectors [B, C] that :meth:`represent` describes, computed by one call of the encoder."""
        embed = self.encoder.embed_tokens
        reads_all = all_outputs or (self.args.sen_rep_type != "cls" and not self.args.use_p)
        num_outputs = None if reads_all else 1
        if isinstance(embed, PixelEmbedding):
            embedding = embed(src_tokens)
            src_tokens = embed.placeholder_tokens(embedding)
            out = self.encoder(src_tokens, token_embeddings=embedding, num_outputs=num_outputs)
        else:
            out = self.encoder(src_tokens, num_outputs=num_outputs)
        if self.args.use_p:
            return mean_pool(
                out["packed_out"][0].transpose(0, 1), next(iter(out["packed_padding_mask"]), None)
            )
        x = out["encoder_out"][0]  # [T, B, C]
        if self.args.sen_rep_type == "cls":
            return x[0]
        return mean_pool(x.transpose(0, 1), src_tokens.eq(embed.padding_idx))

    def max_positions(self) -> int:
        """Return the maximum sequence length in tokens or pixels, without the class token of images."""
        embed = self.encoder.embed_tokens
        has_cls = isinstance(embed, PixelEmbedding) and embed.cls is not None
        return self.args.max_positions - has_cls


def check_classifier(args: Namespace, input_type: str) -> None:
    """Raise InputError if options contradict each other or the task's ``input_type``, "text" or "image"."""
    if args.input_type not in (None, input_type):
        raise InputError(
            f"--input-type {args.input_type}: the task reads {input_type}s; use --task lra-{args.input_type}"
        )
    if input_type == "image" and args.length_groups > 1:
        raise InputError(
            f"--length-groups {args.length_groups}: images have equal lengths; remove the option"
        )
    is_transformer = args.layer_type == "transformer"
    for option, is_set in (("--use-p", args.use_p), ("--anchored-packed", args.anchored_packed)):
        if is_set and is_transformer:
            raise InputError(
                f"{option}: a Transformer has no packed sequence; remove the option, or use --layer-type luna"
            )


def build_encoder(
    args: Namespace, dictionary: Any, transformer: Any = TransformerSequenceEncoder
) -> nn.Module:
    """Build a classifier's encoder, which embeds tokens, or pixels if ``dictionary`` is None."""
    embed_dim = args.encoder_embed_dim
    embed_tokens: Any
    if dictionary is None:
        embed_tokens = PixelEmbedding(embed_dim, prepend_cls=args.sen_rep_type == "cls" and not args.use_p)
    else:
        embed_tokens = nn.Embedding(len(dictionary), embed_dim, dictionary.pad())
        nn.init.normal_(embed_tokens.weight, std=embed_dim**-0.5)
        nn.init.zeros_(embed_tokens.weight[dictionary.pad()].detach())
    repeats = args.encoder_layers if args.tie_layer_weights else 1
    cfg = nested_config(
        Namespace(
            **{
                **vars(args),
                "encoder_layers": 1 if repeats > 1 else args.encoder_layers,
                "projection_length": args.encoder_projection_length,
                "no_scale_embedding": args.encoder_learned_pos,
                "layernorm_embedding": not args.encoder_normalize_before,
                "max_source_positions": args.max_positions,
            }
        )
    )
    if args.layer_type == "luna":
        options = {"sentence_encoder": True, "packed_is_read": args.use_p}
        return FairseqLunaEncoder(cfg, dictionary, embed_tokens, **options, layer_repeats=repeats)
    return transformer(cfg, dictionary, embed_tokens, layer_repeats=repeats)


_PF32 = {
    **encoder_sizes(1, 128, 128, 4),
    "classifier_out_dim": 256,
    "max_positions": 32 * 32 + 2,
    "sen_rep_type": "mp",
}
_TASKS: Presets = {
    "listop": {
        "sentence_class_num": 10,
        "max_positions": 2002,
        "tie_layer_weights": True,
        "apply_bert_init": True,
    },
    "imdb": {**encoder_sizes(4, 256, 1024, 4), "classifier_out_dim": 1024, "apply_bert_init": True},
    "aan": {**encoder_sizes(4, 128, 512, 4), "classifier_out_dim": 512},
    "cifar10": {
        **encoder_sizes(1, 64, 128, 8),
        "classifier_out_dim": 128,
        "sentence_class_num": 10,
        "max_positions": 32 * 32 + 2,
    },
    "pf32": _PF32,
    "pf128": {**_PF32, "max_positions": 128 * 128 + 2},
}

# For each architecture, the options that differ from the defaults of LunaClassifierConfig. As in the authors'
# code, positions are learned, and Luna's keys and values are untied. Transformers differ only in the kind of
# layers.
ARCHITECTURES: Presets = {"lra": {}}
for _name, _preset in _TASKS.items():
    _options = {"encoder_learned_pos": True, **_preset}
    _untied = {"untie_luna_kv": True, **_options}
    ARCHITECTURES[f"luna_lra_{_name}"] = _untied
    ARCHITECTURES[f"luna_anchored_lra_{_name}"] = {"anchored_packed": True, **_untied}
    ARCHITECTURES[f"transformer_lra_{_name}"] = {"layer_type": "transformer", **_options}
register_architectures("lra", ARCHITECTURES)
