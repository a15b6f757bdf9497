"""Options of ``--arch rnn_attention``, a recurrent translation model with attention."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from luna_fairseq.checks.bounds import PROBABILITY
from luna_fairseq.checks.model_options import fill_in_defaults
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.options import option
from luna_fairseq.peers.recurrent_attention import LOCAL, SCORES

# Default scores, as in the two papers.
OWN_SCORES = {"bahdanau": "concat", "luong": "general"}


@dataclass
class RnnAttentionConfig(FairseqDataclass):
    """Options of ``--arch rnn_attention``, a recurrent translation model with attention."""

    attention: ChoiceEnum(list(OWN_SCORES)) = option(
        "luong",
        "bahdanau: the previous state is the query, and the context enters the cell; luong: the current "
        "state is the query, and the context enters the output",
    )
    score: Optional[ChoiceEnum(list(SCORES))] = option(
        None, "score of a decoder and an encoder state (default: concat with bahdanau, general with luong)"
    )
    local: ChoiceEnum(LOCAL) = option(
        "none",
        "attend only to a window around the position of the target token (monotonic) or around a predicted "
        "position (predictive)",
    )
    local_window: Optional[int] = option(
        None, "with --local: number of tokens on each side of the middle of the window (D)", least=1
    )
    input_feeding: bool = option(False, "luong: the previous output also enters the cell")
    cell: ChoiceEnum(["lstm", "gru"]) = option("lstm", "recurrent cell of the encoder and the decoder")
    dropout: float = option(0.1, "dropout probability", may_change=True, **PROBABILITY)
    encoder_embed_dim: int = option(512, "encoder embedding dimension", least=1)
    encoder_hidden_size: int = option(256, "width of the encoder states in each direction", least=1)
    encoder_layers: int = option(1, "number of encoder layers", least=1)
    decoder_embed_dim: Optional[int] = option(
        None, "decoder embedding dimension", default_from="encoder_embed_dim", least=1
    )
    decoder_hidden_size: int = option(512, "width of the decoder states", least=1)
    decoder_layers: int = option(1, "number of decoder layers, equal to --encoder-layers", least=1)
    decoder_out_embed_dim: Optional[int] = option(
        None, "width of the decoder's output", default_from="decoder_embed_dim", least=1
    )
    share_decoder_input_output_embed: bool = option(False, "share decoder input and output embeddings")
    share_all_embeddings: bool = option(
        False, "share encoder, decoder and output embeddings (requires a joined dictionary)"
    )
    max_source_positions: int = option(
        1024, "max number of tokens in the source sequence", may_change=True, least=1
    )
    max_target_positions: int = option(
        1024, "max number of tokens in the target sequence", may_change=True, least=1
    )


def fill_defaults(cfg: Any) -> Namespace:
    """Return the options of ``cfg``, with missing values replaced by defaults.

    Raises InputError if options are incompatible.

    Example:
        >>> fill_defaults(RnnAttentionConfig(attention="bahdanau")).score
        'concat'
    """
    cfg = Namespace(**fill_in_defaults(flat_options(cfg, RnnAttentionConfig()), RnnAttentionConfig))
    cfg.score = cfg.score or OWN_SCORES[cfg.attention]
    if cfg.encoder_layers != cfg.decoder_layers:
        raise InputError(
            f"Expected equal numbers of layers, got --encoder-layers {cfg.encoder_layers} and "
            f"--decoder-layers {cfg.decoder_layers}. Use the same number, because each decoder layer starts "
            "from the last state of an encoder layer."
        )
    if cfg.input_feeding and cfg.attention == "bahdanau":
        raise InputError(
            "--input-feeding has no effect with --attention bahdanau, whose context always enters the cell. "
            "Remove the option."
        )
    if cfg.share_all_embeddings and cfg.decoder_embed_dim != cfg.encoder_embed_dim:
        raise InputError(
            f"Expected equal widths for --share-all-embeddings, got --encoder-embed-dim "
            f"{cfg.encoder_embed_dim} and --decoder-embed-dim {cfg.decoder_embed_dim}. Use equal widths."
        )
    shared = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
    if shared and cfg.decoder_out_embed_dim != cfg.decoder_embed_dim:
        raise InputError(
            f"Expected equal widths for shared embeddings, got --decoder-out-embed-dim "
            f"{cfg.decoder_out_embed_dim} and --decoder-embed-dim {cfg.decoder_embed_dim}. Use equal widths."
        )
    return cfg
