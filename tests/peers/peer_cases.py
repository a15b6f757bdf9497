"""Small peer attentions of every form and variant, for the tests of the peers."""

from argparse import Namespace

import tiny_luna
import torch

from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.peers import ATTENTIONS, PeerOptions, build_attention

# Width, number of heads, and maximum length. All are different, and the width of a head is 4.
C, H, LONGEST = 12, 3, 48
# Options small enough that a dozen positions fill several windows, blocks, chunks and buckets.
SMALL = {
    "performer_features": 7,
    "rfa_dim": 11,
    "abc_slots": 5,
    "linformer_k": 6,
    "conv_linformer_r": 4,
    "local_window": 3,
    "sparse_stride": 3,
    "longformer_window": 4,
    "longformer_global_tokens": 2,
    "bigbird_block": 2,
    "bigbird_global_blocks": 1,
    "bigbird_random_blocks": 2,
    "reformer_buckets": 4,
    "reformer_chunk": 2,
    "sinkhorn_block": 3,
    "synthesizer_k": 3,
    "flare_latents": 5,
}
# Options of the variants that compute something else than the defaults.
VARIANTS = {
    "softmax, alibi": {"alibi": True},
    "softmax, diagonal": {"diagonal_prior": True},
    "softmax, sentence diagonal": {"diagonal_prior": True, "sentence_diagonal": True},
    "rfa, gate": {"rfa_gate": True},
    "linformer, none": {"linformer_sharing": "none"},
    "linformer, key-value": {"linformer_sharing": "key-value"},
    "local, blocks": {"local_kind": "blocks"},
    "longformer, no global": {"longformer_global_tokens": 0},
    "bigbird, two global": {"bigbird_global_blocks": 2, "bigbird_random_blocks": 1},
    "reformer, one hash": {"reformer_hashes": 1},
    "reformer, one bucket": {"reformer_buckets": 1},
    "synthesizer, random": {"synthesizer_kind": "random"},
    "synthesizer, factorized-dense": {"synthesizer_kind": "factorized-dense"},
    "synthesizer, factorized-random": {"synthesizer_kind": "factorized-random"},
}
NAMES = [*ATTENTIONS, *VARIANTS]


def cases(*forms):
    """Return a pair (name, form) for each attention or variant and each of the given forms that it has."""
    return [
        (name, form) for name in NAMES for form in forms if form in ATTENTIONS[attention_name(name)].roles
    ]


def attention_name(name):
    return name.split(",")[0]


def options(**given):
    return Namespace(**{**vars(PeerOptions()), **SMALL, **given})


def build(name, form, dtype=torch.float64, seed=0, dropout=0.0, heads=H, **given):
    """Build an attention in evaluation mode, with random numbers added to its initial parameters."""
    torch.manual_seed(seed)
    given = {**VARIANTS.get(name, {}), **given}
    max_positions = given.pop("max_positions", LONGEST)
    module = build_attention(
        attention_name(name), C, heads, form, options(**given), max_positions=max_positions, dropout=dropout
    )
    return tiny_luna.perturb(module, 0.3).to(dtype).eval()


def sequence(length, batch=2, dtype=torch.float64, seed=0):
    """Return a random input [T, B, C] of ``length`` positions and batch size ``batch``."""
    return torch.randn(
        length, batch, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def pad(sentences, left=0, right=0, value=9.0):
    """Pad sentences of different lengths to a batch.

    Args:
        sentences: list of B sentences, each [length, C].
        left: number of padding positions on the left of each sentence, or a list with a number for each.
        right: number of padding positions on the right of the longest sentence.
        value: value of the padding.

    Returns:
        The batch [T, B, C], and its mask [B, T], True at padding.
    """
    lefts = left if isinstance(left, list) else [left] * len(sentences)
    T = max(n + len(sentence) for n, sentence in zip(lefts, sentences)) + right
    x = torch.full((T, len(sentences), sentences[0].size(1)), value, dtype=sentences[0].dtype)
    mask = torch.ones(len(sentences), T, dtype=torch.bool)
    for b, (n, sentence) in enumerate(zip(lefts, sentences)):
        x[n : n + len(sentence), b] = sentence
        mask[b, n : n + len(sentence)] = False
    return x, mask


def assert_close(actual, expected, tolerance=1e-9):
    tiny_luna.assert_close(actual, expected, tolerance=tolerance)


class Product(torch.nn.Module):
    """Stand-in of a linear layer in 8 bits or bfloat16, without the attributes of ``nn.Linear``."""

    def __init__(self, weight, bias):
        super().__init__()
        self.product = [weight, bias]

    def forward(self, x):
        return torch.nn.functional.linear(x, *self.product)


def beams(model, tolerance):
    """Translate sentences alone and in a batch, and check that the hypotheses are equal.

    Args:
        model: translation model.
        tolerance: largest difference between the scores of equal hypotheses.

    Yields:
        The length of the sentence, a hypothesis of the sentence alone, and the same hypothesis in the batch.
    """
    source, _ = tiny_luna.example()
    generator = SequenceGenerator([model], tiny_luna.Task().target_dictionary, beam_size=3, max_len_b=12)

    def translate(sentences):
        inputs = {"src_tokens": tiny_luna.batch(sentences, left=True)}
        return generator({"net_input": {**inputs, "src_lengths": torch.tensor([*map(len, sentences)])}})

    for tokens, hypotheses in zip(source, translate(source)):
        (alone,) = translate([tokens])
        for a, b in zip(alone, hypotheses):
            assert a["tokens"].tolist() == b["tokens"].tolist() and abs(a["score"] - b["score"]) < tolerance
            yield len(tokens), a, b
