"""Dataclass with the options of the attention mechanisms from other papers ("peers")."""

from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from luna_fairseq.models.options import option

LINFORMER_SHARING = ("none", "headwise", "key-value", "layerwise")
LOCAL_KINDS = ("window", "blocks")
SYNTHESIZER_KINDS = ("dense", "random", "factorized-dense", "factorized-random")


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
    performer_features: int = option(256, "performer: number of random features (M)", least=1)
    performer_redraw_interval: int = option(
        1000,
        "performer: number of updates after which the random features are resampled (0: never)",
        least=0,
    )
    rfa_dim: int = option(
        64, "rfa: number of random vectors (D); each vector gives two features, a sine and a cosine", least=1
    )
    rfa_sigma: float = option(
        1.0, "rfa: initial value of the learned sigma; a larger value gives sharper attention", above=0
    )
    rfa_gate: bool = option(
        False,
        "rfa: learn a gate with which causal attention forgets earlier positions",
        used_with={"decoder_attention": "rfa"},
    )
    abc_slots: int = option(32, "abc: number of memory slots of each head (n)", least=1)
    linformer_k: int = option(128, "linformer: length that keys and values are projected to (k)", least=1)
    linformer_sharing: ChoiceEnum(LINFORMER_SHARING) = option(
        "headwise",
        "linformer: what shares a projection: nothing (none), the heads of a layer (headwise), also keys and "
        "values (key-value), or also all layers (layerwise)",
    )
    conv_linformer_r: int = option(
        8,
        "conv_linformer: number of segments that the maximum length is divided into (r); r / 2 keys remain",
        least=2,
    )
    local_window: int = option(
        64, "local: number of positions in the window on each side, or size of a block (w)", least=1
    )
    local_kind: ChoiceEnum(LOCAL_KINDS) = option(
        "window", "local: a sliding window around each position, or fixed blocks"
    )
    sparse_stride: int = option(
        64, "sparse: stride (l); the square root of the length is a good choice", least=1
    )
    longformer_window: int = option(
        128, "longformer: width of the window (w), an even number, half of it on each side", least=2
    )
    longformer_global_tokens: int = option(
        1, "longformer: number of global tokens at the start of each sequence (g)", least=0
    )
    bigbird_block: int = option(64, "bigbird: size of a block", least=1)
    bigbird_global_blocks: int = option(
        1, "bigbird: number of global blocks at the start of each sequence (g)", least=0
    )
    bigbird_random_blocks: int = option(
        3, "bigbird: number of random blocks that each block attends to (r)", least=0
    )
    reformer_hashes: int = option(2, "reformer: number of hashing rounds", least=1)
    reformer_buckets: int = option(
        32, "reformer: number of buckets in a round, an even number, or 1 for no hashing", least=1
    )
    reformer_chunk: int = option(
        64, "reformer: number of positions of the same bucket to attend to on each side", least=1
    )
    sinkhorn_block: int = option(64, "sinkhorn: size of a block (b)", least=1)
    sinkhorn_iterations: int = option(
        5, "sinkhorn: number of times that rows and columns are normalized", least=1
    )
    sinkhorn_temperature: float = option(
        0.75, "sinkhorn: temperature; a lower value gives a matrix nearer to a permutation", above=0
    )
    synthesizer_kind: ChoiceEnum(SYNTHESIZER_KINDS) = option(
        "dense", "synthesizer: source of the weights, the input (dense) or learned matrices (random)"
    )
    synthesizer_k: int = option(8, "synthesizer: rank of the matrices of factorized-random (k)", least=1)
    flare_latents: int = option(64, "flare: number of latent queries of each head (M)", least=1)
