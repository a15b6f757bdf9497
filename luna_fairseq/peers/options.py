"""Dataclass with the options of the attention mechanisms from other papers ("peers")."""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from luna_fairseq.models.options import option
from luna_fairseq.peers.attention import OPTIONS
from luna_fairseq.peers.registry import ATTENTIONS

LINFORMER_SHARING = ("none", "headwise", "key-value", "layerwise")
LOCAL_KINDS = ("window", "blocks")
SYNTHESIZER_KINDS = ("dense", "random", "factorized-dense", "factorized-random")


def _mechanism_option(name: str, default: Any, help: str, **metadata: Any) -> Any:
    """Declare an option that only the attention mechanism ``name`` has, in any of its roles."""
    needs = {OPTIONS[role][2:].replace("-", "_"): name for role in ATTENTIONS[name].roles}
    return option(default, f"{name}: {help}", used_with=needs, **metadata)


@dataclass
class PeerOptions(FairseqDataclass):
    """Options of all attention mechanisms of luna_fairseq.peers, such as ``--performer-features``.

    An option's prefix is its mechanism: ``local_kind`` is the kind of local attention, by default "window".
    Only the options of softmax attention (``alibi``, ``diagonal_prior``, ``sentence_diagonal``) lack one.

    Example:
        >>> PeerOptions(local_window=3).local_kind
        'window'
    """

    alibi: bool = option(
        False,
        "softmax self-attention: add ALiBi's penalty on distance to the logits",
        used_with={"attention": "softmax", "decoder_attention": "softmax"},
    )
    diagonal_prior: bool = option(
        False,
        "softmax cross-attention: favour source tokens near the diagonal, as in anchored Luna",
        used_with={"cross_attention": "softmax"},
    )
    sentence_diagonal: bool = option(
        False,
        "with --diagonal-prior, for text prepared with --documents: restart the diagonal at each <sep>",
        used_with={"cross_attention": "softmax"},
    )
    performer_features: int = _mechanism_option("performer", 256, "number of random features (M)", least=1)
    performer_redraw_interval: int = _mechanism_option(
        "performer",
        1000,
        "number of updates after which the random features are resampled (0: never)",
        least=0,
    )
    rfa_dim: int = _mechanism_option(
        "rfa",
        64,
        "number of random vectors (D); each vector gives two features, a sine and a cosine",
        least=1,
    )
    rfa_sigma: float = _mechanism_option(
        "rfa", 1.0, "initial value of the learned sigma; a larger value gives sharper attention", above=0
    )
    rfa_gate: bool = option(
        False,
        "rfa: learn a gate with which causal attention forgets earlier positions",
        used_with={"decoder_attention": "rfa"},
    )
    abc_slots: int = _mechanism_option("abc", 32, "number of memory slots of each head (n)", least=1)
    linformer_k: int = _mechanism_option(
        "linformer", 128, "length that keys and values are projected to (k)", least=1
    )
    linformer_sharing: ChoiceEnum(LINFORMER_SHARING) = _mechanism_option(
        "linformer",
        "headwise",
        "what shares a projection: nothing (none), the heads of a layer (headwise), also keys and "
        "values (key-value), or also all layers (layerwise)",
    )
    conv_linformer_r: int = _mechanism_option(
        "conv_linformer",
        8,
        "number of segments that the maximum length is divided into (r); r / 2 keys remain",
        least=2,
    )
    local_window: int = _mechanism_option(
        "local", 64, "number of positions in the window on each side, or size of a block (w)", least=1
    )
    local_kind: ChoiceEnum(LOCAL_KINDS) = _mechanism_option(
        "local", "window", "a sliding window around each position, or fixed blocks"
    )
    sparse_stride: int = _mechanism_option(
        "sparse", 64, "stride (l); the square root of the length is a good choice", least=1
    )
    longformer_window: int = _mechanism_option(
        "longformer", 128, "width of the window (w), an even number, half of it on each side", least=2
    )
    longformer_global_tokens: int = _mechanism_option(
        "longformer", 1, "number of global tokens at the start of each sequence (g)", least=0
    )
    bigbird_block: int = _mechanism_option("bigbird", 64, "size of a block", least=1)
    bigbird_global_blocks: int = _mechanism_option(
        "bigbird", 1, "number of global blocks at the start of each sequence (g)", least=0
    )
    bigbird_random_blocks: int = _mechanism_option(
        "bigbird", 3, "number of random blocks that each block attends to (r)", least=0
    )
    reformer_hashes: int = _mechanism_option("reformer", 2, "number of hashing rounds", least=1)
    reformer_buckets: int = _mechanism_option(
        "reformer", 32, "number of buckets in a round, an even number, or 1 for no hashing", least=1
    )
    reformer_chunk: int = _mechanism_option(
        "reformer", 64, "number of positions of the same bucket to attend to on each side", least=1
    )
    sinkhorn_block: int = _mechanism_option("sinkhorn", 64, "size of a block (b)", least=1)
    sinkhorn_iterations: int = _mechanism_option(
        "sinkhorn", 5, "number of times that rows and columns are normalized", least=1
    )
    sinkhorn_temperature: float = _mechanism_option(
        "sinkhorn", 0.75, "temperature; a lower value gives a matrix nearer to a permutation", above=0
    )
    synthesizer_kind: ChoiceEnum(SYNTHESIZER_KINDS) = _mechanism_option(
        "synthesizer", "dense", "source of the weights, the input (dense) or learned matrices (random)"
    )
    synthesizer_k: int = option(
        8,
        "synthesizer: rank of the matrices of factorized-random (k)",
        least=1,
        used_with={"synthesizer_kind": "factorized-random"},
    )
    flare_latents: int = _mechanism_option("flare", 64, "number of latent queries of each head (M)", least=1)
