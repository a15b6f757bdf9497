"""The Luna masked language model (Luna, section 4.3): fairseq's RoBERTa on the Luna encoder, and its
architectures."""

from argparse import Namespace
from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, encoder_sizes, register_architectures
from luna_fairseq.models.bases import (
    SentenceModel,
    SentenceModelEncoder,
    check_sequences_fit,
    sentence_encoder_options,
)
from luna_fairseq.models.classification_heads import PACKED_HEADS
from luna_fairseq.models.fairseq_encoder import FairseqLunaEncoder
from luna_fairseq.models.generator_hub import from_pretrained
from luna_fairseq.models.last_packed_norm import read_packed
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_masked_lm_config import LunaMaskedLMConfig
from luna_fairseq.models.masked_lm_hub import MaskedLMHub


class LunaMaskedLMEncoder(SentenceModelEncoder):
    """RoBERTa's encoder and LM head, with a :class:`FairseqLunaEncoder` as its sentence encoder."""

    def build_encoder(
        self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> FairseqLunaEncoder:
        """Build the sentence encoder."""
        cfg = nested_config(sentence_encoder_options(args))
        options = {"sentence_encoder": True, "packed_is_read": False}
        return FairseqLunaEncoder(cfg, dictionary, embed_tokens, **options)

    def extract_features(
        self, src_tokens: Tensor, return_all_hiddens: bool = False, **kwargs: Any
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """
        Args:
            src_tokens: [B, T]
            return_all_hiddens: also return X and P after every layer
            token_embeddings: [B, T, C] in place of the embedding's own

        Returns:
            features [B, T, C], and a dictionary: ``packed_features`` [B, L, C], the last P, normalised;
            ``packed_padding_mask`` [B, L], True at rows of P that are left out, or None; ``inner_states`` and
            ``packed_states``, lists of [T, B, C] and [L, B, C], or None. The last of ``packed_states`` is not
            normalised.
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
    """Luna encoder with RoBERTa's LM head and classification heads.

    Args:
        args: a :class:`LunaMaskedLMConfig` or a namespace with its fields
        encoder: :class:`LunaMaskedLMEncoder`
    """

    def __init__(self, args: Any, encoder: LunaMaskedLMEncoder):
        super().__init__(args, encoder)
        # P begins as BERT's embeddings do; RoBERTa has initialised the rest.
        nn.init.normal_(encoder.sentence_encoder.packed_embedding.weight, std=0.02)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LunaMaskedLM":
        """Build the model for the dictionary of ``task``.

        Raises:
            InputError: widths, heads or projection length that cannot be, or a task with longer sequences
                than positions
        """
        args = Namespace(**flat_options(cfg, LunaMaskedLMConfig()))
        check_sequences_fit(task, args.max_positions)
        args.untie_weights_roberta = args.untie_weights_luna
        return cls(args, LunaMaskedLMEncoder(args, task.source_dictionary))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        bpe: Optional[str] = None,
        **kwargs: Any,
    ) -> MaskedLMHub:
        """A checkpoint with its classification heads, in evaluation mode.

        Args:
            model_name_or_path: folder of the checkpoint
            checkpoint_file: its name
            data_name_or_path: folder of ``dict.txt`` (of ``input0/dict.txt`` for a fine-tuned model);
                beginning with ``.``, it is relative to the checkpoint's
            bpe: fairseq's name of a tokenizer, with its options as further arguments. By default the one
                whose files are in one of the two folders: ``sentencepiece.bpe.model``, or ``encoder.json``
                and ``vocab.bpe`` of GPT-2. Where there are none, text is words separated by spaces; where the
                dictionary is of pieces, plain text is then refused.
            kwargs: overrides of the checkpoint's options

        Raises:
            InputError: a folder does not exist, or the dictionary or the tokenizer is another one than the
                checkpoint's
        """
        if bpe is not None:
            kwargs["bpe"] = bpe
        names = model_name_or_path, checkpoint_file, data_name_or_path
        return from_pretrained(*names, hub=MaskedLMHub, load_checkpoint_heads=True, **kwargs)

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: Optional[str] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """
        Args:
            src_tokens: [B, T], padded on the right
            features_only: leave out the LM head
            return_all_hiddens: also return X and P after every layer
            classification_head_name: apply this head
            masked_tokens: [B, T], True where the LM head's output is wanted (default: everywhere)

        Returns:
            logits [B, T, V] ([N, V] with ``masked_tokens``), features [B, T, C] or the head's logits [B,
            classes]; and what :meth:`LunaMaskedLMEncoder.extract_features` describes

        Raises:
            InputError: a head that the model does not have, or a sequence longer than the positions
        """
        x, extra = super().forward(
            src_tokens,
            features_only or classification_head_name is not None,
            return_all_hiddens,
            **kwargs,
        )
        if classification_head_name is not None:
            x = self.classify(classification_head_name, x, extra)
        return x, extra

    def classify(self, head: str, features: Tensor, extra: Dict[str, Any]) -> Tensor:
        """Logits [B, classes] of ``head`` for what :meth:`forward` returned with ``features_only``. Raises
        InputError where there is no such head."""
        if head not in self.classification_heads:
            there = ", ".join(self.classification_heads) or "none"
            raise InputError(f"the model has no classification head {head!r}; its heads: {there}")
        return self.classification_heads[head](
            features, packed=extra["packed_features"], packed_padding_mask=extra["packed_padding_mask"]
        )

    def register_classification_head(
        self, name: str, num_classes: Optional[int] = None, inner_dim: Optional[int] = None, **kwargs: Any
    ) -> None:
        """Add a head on ``<s>``, or on the last P when the name says so.

        Args:
            name: ``pooling_classification_head`` (maximum over P), ``mean_classification_head`` (mean of P),
                ``attention_classification_head`` (attention of ``<s>`` to P), or any other name (``<s>``)
            num_classes: number of logits
            inner_dim: width of the head's hidden layer (default: the encoder's)
        """
        super().register_classification_head(name, num_classes, inner_dim, **kwargs)
        if name not in PACKED_HEADS:
            return
        args = self.args
        options: Dict[str, Any] = {}
        if name == "attention_classification_head":
            options = {"num_heads": args.encoder_attention_heads, "attention_dropout": args.attention_dropout}
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
        read_packed(self.encoder.sentence_encoder)


_LARGE = encoder_sizes(24, 1024, 4096, 16)
_SMALL = {"projection_length": 32, **encoder_sizes(4, 256, 1024, 4)}
_TINY = {"projection_length": 16, **encoder_sizes(2, 128, 512, 2)}
_2048 = {"max_positions": 2048, "projection_length": 256}
_4096 = {"max_positions": 4096, "projection_length": 256}
_UNTIED = {"untie_luna_kv": True}

# What each architecture sets apart from LunaMaskedLMConfig's defaults, the paper's base size with tied keys
# and values. The small ones are for a laptop.
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
