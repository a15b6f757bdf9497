"""Options of ``--arch rnn_attention``."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from luna_fairseq.checks.bounds import PROBABILITY
from luna_fairseq.checks.model_options import fill_open
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.options import option
from luna_fairseq.peers.recurrent_attention import LOCAL, SCORES

# The score of each paper's own model.
OWN_SCORES = {"bahdanau": "concat", "luong": "general"}


@dataclass
class RnnAttentionConfig(FairseqDataclass):
    """One layer of 512 on either side."""

    attention: ChoiceEnum(list(OWN_SCORES)) = option(
        "luong", "whether the previous state asks and the cell reads, or the current state and the output"
    )
    score: Optional[ChoiceEnum(list(SCORES))] = option(
        None, "how well two states fit (default: concat with bahdanau, general with luong)"
    )
    local: ChoiceEnum(LOCAL) = option(
        "none", "attend to a window only: about the token's own place, or about one that is predicted"
    )
    local_window: Optional[int] = option(None, "D, tokens of the window on each side of its middle", least=1)
    input_feeding: bool = option(False, "luong: the cell reads the output before, too")
    cell: ChoiceEnum(["lstm", "gru"]) = option("lstm", "recurrent cell of encoder and decoder")
    dropout: float = option(0.1, "dropout probability", may_change=True, **PROBABILITY)
    encoder_embed_dim: int = option(512, "encoder embedding dimension", least=1)
    encoder_hidden_size: int = option(256, "width of the encoder's states in each direction", least=1)
    encoder_layers: int = option(1, "number of encoder layers", least=1)
    decoder_embed_dim: Optional[int] = option(
        None, "decoder embedding dimension", default_from="encoder_embed_dim", least=1
    )
    decoder_hidden_size: int = option(512, "width of the decoder's states", least=1)
    decoder_layers: int = option(1, "number of decoder layers, as many as of the encoder", least=1)
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
    """The options of ``cfg`` with open defaults filled in.

    Raises:
        InputError: options that do not go together
    """
    cfg = Namespace(**fill_open(flat_options(cfg, RnnAttentionConfig()), RnnAttentionConfig))
    cfg.score = cfg.score or OWN_SCORES[cfg.attention]
    if cfg.encoder_layers != cfg.decoder_layers:
        raise InputError(
            f"--encoder-layers {cfg.encoder_layers} and --decoder-layers {cfg.decoder_layers}: every decoder "
            "layer begins with the state of the encoder layer beside it, so give as many of both"
        )
    if cfg.input_feeding and cfg.attention == "bahdanau":
        raise InputError(
            "--input-feeding is luong's: with bahdanau the context enters the cell anyway, so leave it out"
        )
    if cfg.share_all_embeddings and cfg.decoder_embed_dim != cfg.encoder_embed_dim:
        raise InputError(
            f"--share-all-embeddings with --encoder-embed-dim {cfg.encoder_embed_dim} and "
            f"--decoder-embed-dim {cfg.decoder_embed_dim}: give both the same"
        )
    shared = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
    if shared and cfg.decoder_out_embed_dim != cfg.decoder_embed_dim:
        raise InputError(
            f"--decoder-out-embed-dim {cfg.decoder_out_embed_dim} differs from --decoder-embed-dim "
            f"{cfg.decoder_embed_dim}: shared embeddings have one width"
        )
    return cfg
