"""The options of every attention."""

from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from luna_fairseq.models.options import option

LINFORMER_SHARING = ("none", "headwise", "key-value", "layerwise")
LOCAL_KINDS = ("window", "blocks")
SYNTHESIZER_KINDS = ("dense", "random", "factorized-dense", "factorized-random")


@dataclass
class PeerOptions(FairseqDataclass):
    """Flat, each under its attention's name."""

    alibi: bool = option(False, "softmax self-attention: ALiBi's bias against distance")
    diagonal_prior: bool = option(
        False, "softmax cross-attention: begins near the diagonal, as that of anchored Luna"
    )
    sentence_diagonal: bool = option(
        False, "with --diagonal-prior: anew from each <sep> on, as that of anchored Luna"
    )
    performer_features: int = option(256, "performer: M, the number of random features", least=1)
    performer_redraw_interval: int = option(
        1000, "performer: updates of training after which the features are drawn anew; 0: never", least=0
    )
    rfa_dim: int = option(
        64, "rfa: D, the number of random vectors; there are twice as many features", least=1
    )
    rfa_sigma: float = option(1.0, "rfa: where the learned sigma begins; larger is sharper", above=0)
    rfa_gate: bool = option(False, "rfa: causal attention forgets by a learned gate")
    abc_slots: int = option(32, "abc: n, the number of slots of every head", least=1)
    linformer_k: int = option(128, "linformer: k, the length that keys and values are projected to", least=1)
    linformer_sharing: ChoiceEnum(LINFORMER_SHARING) = option(
        "headwise", "linformer: who shares: no one, all heads, keys with values too, or all layers too"
    )
    conv_linformer_r: int = option(
        8,
        "conv_linformer: r, into how many parts the longest sequence is divided; r / 2 keys are left",
        least=2,
    )
    local_window: int = option(64, "local: positions seen on either side, or the size of a block", least=1)
    local_kind: ChoiceEnum(LOCAL_KINDS) = option(
        "window", "local: a window around each position, or fixed blocks"
    )
    sparse_stride: int = option(64, "sparse: l, the stride; near the root of the length", least=1)
    longformer_window: int = option(
        128, "longformer: w, the width of the window, half of it on either side", least=2
    )
    longformer_global_tokens: int = option(
        1, "longformer: g, the first tokens of a sequence, which are global", least=0
    )
    bigbird_block: int = option(64, "bigbird: size of a block", least=1)
    bigbird_global_blocks: int = option(
        1, "bigbird: g, the first blocks, which see all and are seen by all", least=0
    )
    bigbird_random_blocks: int = option(3, "bigbird: r, the random blocks that each block sees", least=0)
    reformer_hashes: int = option(2, "reformer: rounds of hashing", least=1)
    reformer_buckets: int = option(
        32, "reformer: buckets of a round, an even number, or 1 for all positions", least=1
    )
    reformer_chunk: int = option(
        64, "reformer: positions of the same bucket that are seen on either side", least=1
    )
    sinkhorn_block: int = option(64, "sinkhorn: b, the size of a block", least=1)
    sinkhorn_iterations: int = option(
        5, "sinkhorn: times that rows and columns are divided by their sums", least=1
    )
    sinkhorn_temperature: float = option(
        0.75, "sinkhorn: temperature; lower is nearer to a permutation", above=0
    )
    synthesizer_kind: ChoiceEnum(SYNTHESIZER_KINDS) = option(
        "dense", "synthesizer: what its weights are made of"
    )
    synthesizer_k: int = option(8, "synthesizer: k, the rank of factorized-random", least=1)
    flare_latents: int = option(64, "flare: M, the number of latent queries of every head", least=1)
