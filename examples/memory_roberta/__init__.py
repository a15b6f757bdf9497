"""RoBERTa with ALiBi and vectors of memory that are carried on from segment to segment, as many as P has
rows: what carried P is compared with. A user-dir of its own:

    fairseq-train DATA --user-dir examples/memory_roberta --arch memory_roberta --task streaming_masked_lm \
        --criterion masked_lm --segment-length 128 --projection-length 32 ...

After the Recurrent Memory Transformer (Bulatov et al., 2022): the vectors stand before the segment's tokens,
every token reads them and they read every token, all at no distance, and what the last layer makes of them
stands before the next segment.
"""

from argparse import Namespace
from dataclasses import dataclass

import torch

import luna_fairseq  # noqa: F401
from fairseq.models import register_model
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import register_architectures
from luna_fairseq.models.bases import extended, sentence_encoder_options
from luna_fairseq.models.carried_packed import CarriesPacked
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM, LunaMaskedLMEncoder
from luna_fairseq.models.options import CarryOptions, option
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.peers.config import PeerRobertaConfig
from luna_fairseq.peers.layers import PeerEncoder


@dataclass
class MemoryRobertaConfig(PeerRobertaConfig, CarryOptions):
    """RoBERTa's options; with ALiBi, and carrying."""

    projection_length: int = option(32, "vectors of memory")
    alibi: bool = option(True, "ALiBi's bias against distance between tokens")
    carry_packed: bool = option(True, "carry the memory on")


class MemoryEncoder(PeerEncoder):
    """The segment after its memory, through layers of softmax attention.

    Args:
        cfg, dictionary, embed_tokens: as for :class:`PeerEncoder`
        packed_is_read: of Luna's encoders; memory always is
    """

    def __init__(self, cfg, dictionary, embed_tokens, packed_is_read=True):
        super().__init__(cfg, dictionary, embed_tokens)
        self.rows = cfg.projection_length
        self.packed_embedding = PackedEmbedding(self.rows, cfg.encoder.embed_dim)
        for layer in self.layers:
            attention = layer.self_attn
            attention.bias = lambda q, k, bias=attention.bias: self.without_distance(bias(q, k))

    def without_distance(self, bias):
        """Memory is near every token."""
        of_memory = torch.arange(bias.size(-1), device=bias.device) < self.rows
        return bias.masked_fill(of_memory | of_memory[:, None], 0.0)

    def forward(self, src_tokens, src_lengths=None, return_all_hiddens=False, token_embeddings=None):
        """What :class:`CarriesPacked` reads, of one segment [B, S] without padding."""
        memory, _ = self.first_packed(src_tokens)
        embedded = self.embed_tokens(src_tokens) if token_embeddings is None else token_embeddings
        places = src_tokens.new_full((len(src_tokens), self.rows), self.padding_idx + 1)
        whole = torch.cat([memory.transpose(0, 1), embedded], dim=1)
        out = super().forward(
            torch.cat([places, src_tokens], dim=1), None, return_all_hiddens, token_embeddings=whole
        )
        packed, tokens = out["encoder_out"][0].tensor_split([self.rows])
        padding = [src_tokens.eq(self.padding_idx)]
        parts = {"encoder_out": [tokens], "encoder_padding_mask": padding, "encoder_states": []}
        return {**out, **parts, "packed_out": [packed], "packed_padding_mask": []}


class MemoryRobertaEncoder(LunaMaskedLMEncoder):
    """RoBERTa's encoder and LM head on a :class:`MemoryEncoder`."""

    def build_encoder(self, args, dictionary, embed_tokens):
        cfg = nested_config(sentence_encoder_options(args))
        return extended(MemoryEncoder, CarriesPacked)(cfg, dictionary, embed_tokens)


@register_model("memory_roberta", dataclass=MemoryRobertaConfig)
class MemoryRoberta(LunaMaskedLM):
    """Called as LunaMaskedLM is."""

    @classmethod
    def build_model(cls, cfg, task):
        """Raises InputError for another attention, which has no bias to leave out."""
        args = Namespace(**flat_options(cfg, MemoryRobertaConfig()))
        if args.attention != "softmax":
            raise InputError(f"--attention {args.attention}: memory_roberta has softmax attention alone")
        return cls(args, MemoryRobertaEncoder(args, task.source_dictionary))


register_architectures("memory_roberta", {"memory_roberta": {}})
