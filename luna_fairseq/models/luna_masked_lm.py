"""Luna masked language model (section 4.3 of the paper) and its named architectures.

The model is fairseq's RoBERTa with a Luna encoder. Shapes: B sequences of T tokens, width C.
"""

from argparse import Namespace
from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from luna_fairseq.models.architectures import Presets, encoder_sizes, register_architectures
from luna_fairseq.models.bases import (
    SentenceModel,
    SentenceModelEncoder,
    check_sequences_fit,
    sentence_encoder_options,
)
from luna_fairseq.models.classification_heads import PACKED_HEADS, classify
from luna_fairseq.models.fairseq_encoder import FairseqLunaEncoder
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_masked_lm_config import LunaMaskedLMConfig


class LunaMaskedLMEncoder(SentenceModelEncoder):
    """Luna encoder with RoBERTa's LM head, for masked language models."""

    def build_encoder(
        self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> FairseqLunaEncoder:
        cfg = nested_config(sentence_encoder_options(args))
        return FairseqLunaEncoder(cfg, dictionary, embed_tokens, sentence_encoder=True, packed_is_read=False)

    def extract_features(
        self, src_tokens: Tensor, return_all_hiddens: bool = False, **kwargs: Any
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Compute features [B, T, C] of tokens [B, T], and a dictionary of additional outputs.

        - ``packed_features``: packed sequence P [B, L, C] of L rows after the last layer and its layer norm
        - ``packed_padding_mask``: mask [B, L], True at padded rows of P. None if there is no padding
        - ``inner_states``: hidden states [T, B, C] before the first layer and after each layer
        - ``packed_states``: P [L, B, C] at the same points, before its final layer norm. Both lists of states
          are None if ``return_all_hiddens`` is False

        If the keyword argument ``token_embeddings`` [B, T, C] is given, it replaces the token embeddings.
        """
        out = self.sentence_encoder(
            src_tokens, return_all_hiddens=return_all_hiddens, token_embeddings=kwargs.get("token_embeddings")
        )
        extra = {
            "inner_states": out["encoder_states"] if return_all_hiddens else None,
            "packed_states": out["packed_states"] if return_all_hiddens else None,
            "packed_features": out["packed_out"][0].transpose(0, 1),
            "packed_padding_mask": next(iter(out["packed_padding_mask"]), None),
        }
        return out["encoder_out"][0].transpose(0, 1), extra


@register_model("luna_masked_lm", dataclass=LunaMaskedLMConfig)
class LunaMaskedLM(SentenceModel):
    """Masked language model with a Luna encoder, RoBERTa's LM head and optional classification heads.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> task = SimpleNamespace(source_dictionary=Dictionary(), max_positions=lambda: 512)
        >>> cfg = LunaMaskedLMConfig(encoder_layers=1, encoder_embed_dim=24, encoder_ffn_embed_dim=48)
        >>> model = LunaMaskedLM.build_model(cfg, task)
        >>> logits, extra = model(torch.tensor([[0, 3, 3, 2]]))
        >>> logits.shape, extra["packed_features"].shape
        (torch.Size([1, 4, 4]), torch.Size([1, 4, 24]))
    """

    def __init__(self, args: Any, encoder: LunaMaskedLMEncoder):
        super().__init__(args, encoder)
        # RoBERTa's constructor initializes everything except P. P is initialized like BERT's embeddings.
        nn.init.normal_(encoder.sentence_encoder.packed_embedding.weight, std=0.02)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LunaMaskedLM":
        """Build a model from options. Raise InputError if the task's sequences are too long for the model."""
        args = Namespace(**flat_options(cfg, LunaMaskedLMConfig()))
        check_sequences_fit(task, args.max_positions)
        args.untie_weights_roberta = args.untie_weights_luna
        return cls(args, LunaMaskedLMEncoder(args, task.source_dictionary))

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: Optional[str] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Compute the logits of the LM head or of a classification head, or features.

        Shapes: B sequences of T tokens, V tokens in the dictionary, width C.

        Args:
            src_tokens: tokens [B, T], padded on the right.
            features_only: return features [B, T, C] in place of the LM head's logits.
            return_all_hiddens: also return the hidden states before the first and after each layer.
            classification_head_name: classification head to apply. The logits are then [B, classes].
            kwargs: ``masked_tokens``, a mask [B, T] that is True at N positions. The LM head then computes
                logits [N, V] for these positions only. Remaining arguments are ignored.

        Returns:
            Logits [B, T, V] by default, and the dictionary of :meth:`LunaMaskedLMEncoder.extract_features`.
        """
        x, extra = super().forward(
            src_tokens,
            features_only or classification_head_name is not None,
            return_all_hiddens,
            **kwargs,
        )
        if classification_head_name is not None:
            x = classify(self, classification_head_name, x, extra)
        return x, extra

    def register_classification_head(
        self, name: str, num_classes: Optional[int] = None, inner_dim: Optional[int] = None, **kwargs: Any
    ) -> None:
        """Add a classification head. A name in :data:`PACKED_HEADS` selects a head with P as input."""
        super().register_classification_head(name, num_classes, inner_dim, **kwargs)
        if name not in PACKED_HEADS:
            return
        args = self.args
        options: Dict[str, Any] = {}
        if name == "attention_classification_head":
            options = {"num_heads": args.encoder_attention_heads}
        self.classification_heads[name] = PACKED_HEADS[name](
            args.encoder_embed_dim,
            inner_dim or args.encoder_embed_dim,
            num_classes,
            args.pooler_activation_fn,
            args.pooler_dropout,
            args.quant_noise_pq,
            args.quant_noise_pq_block_size,
            args.spectral_norm_classification_head,
            **options,
        )
        self.encoder.sentence_encoder.add_packed_norm()


_LARGE = encoder_sizes(24, 1024, 4096, 16)
_SMALL = {"projection_length": 32, **encoder_sizes(4, 256, 1024, 4)}
_TINY = {"projection_length": 16, **encoder_sizes(2, 128, 512, 2)}
_2048 = {"max_positions": 2048, "projection_length": 256}
_4096 = {"max_positions": 4096, "projection_length": 256}
_UNTIED = {"untie_luna_kv": True}

# For each architecture, the options that differ from the defaults of LunaMaskedLMConfig, which are the
# paper's base size with tied keys and values. The architectures "small" and "tiny" can be trained on a
# laptop.
ARCHITECTURES: Presets = {
    "luna_masked_lm": {},
    "luna_bert": {},
    "luna_base_512": {},
    "luna_base_tied_512": {},
    "luna_base_untied_512": _UNTIED,
    "luna_base_2048": _2048,
    "luna_base_untied_2048": {**_2048, **_UNTIED},
    "luna_base_4096": _4096,
    "luna_base_untied_4096": {**_4096, **_UNTIED},
    "luna_large_512": _LARGE,
    "luna_large_2048": {**_LARGE, **_2048},
    "luna_small_512": _SMALL,
    "luna_tiny_512": _TINY,
}
for _name in [name for name in ARCHITECTURES if name.endswith(("_512", "_2048", "_4096"))]:
    ARCHITECTURES[_name.replace("luna_", "luna_anchored_", 1)] = {
        "anchored_packed": True,
        "attention_init": "xavier",
        "local_parts": 3,
        **ARCHITECTURES[_name],
    }
register_architectures("luna_masked_lm", ARCHITECTURES)
