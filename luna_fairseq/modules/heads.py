"""Helpers for the two Luna attention modules: argument checks, projections, and splitting into heads.

Modules use tensors [T, B, C] of T positions, batch size B and width C. The functions in ``ops`` use tensors
[B, H, T, K] of H heads of dimension K = C / H.

In beam search, a batch contains n hypotheses (candidate translations) for each of B source sentences. The
hypotheses of a sentence are adjacent in the batch, and attend to the same source.
"""

from typing import Iterable, Optional

from torch import Tensor, nn

from luna_fairseq.errors import InputError

# Gains of the Xavier uniform initialization for the input projections and for the output projection.
GAIN, OUTPUT_GAIN = 2**-0.5, 1.0


def check_heads(embed_dim: int, num_heads: int, name: str) -> None:
    """Raise an InputError if ``num_heads``, called ``name`` in the message, does not divide ``embed_dim``."""
    if num_heads < 1 or embed_dim % num_heads:
        raise InputError(
            f"embedding width {embed_dim} is not divisible by {num_heads} {name}. Change one of the two"
        )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise an InputError if the value of the option ``name`` is not one of its choices."""
    if value not in choices:
        raise InputError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")


class ProjectingAttention(nn.Module):
    """Base class of attention modules that can re-initialize their linear projections.

    The projections, including the output projection "out_proj", are the direct ``nn.Linear`` submodules.
    """

    def reset_projections(self) -> None:
        """Initialize the weights of all projections with the Xavier uniform scheme.

        Models that initialize all of their linear layers differently call this method afterwards.
        """
        for name, child in self.named_children():
            if isinstance(child, nn.Linear):
                nn.init.xavier_uniform_(child.weight, gain=OUTPUT_GAIN if name == "out_proj" else GAIN)


def build_projection(embed_dim: int, gain: float = GAIN) -> nn.Linear:
    """Build a square linear layer with Xavier uniform weights. Its bias has torch's default values."""
    linear = nn.Linear(embed_dim, embed_dim)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    return linear


def build_output_projection(embed_dim: int) -> nn.Linear:
    """Build the output projection of an attention module, with Xavier uniform weights and a zero bias."""
    linear = build_projection(embed_dim, gain=OUTPUT_GAIN)
    nn.init.zeros_(linear.bias)
    return linear


def dropout_probability(module: nn.Dropout) -> float:
    """Return the dropout probability: 0 in evaluation mode, except with fairseq's --retain-dropout."""
    return module.p if module.training or getattr(module, "apply_during_inference", False) else 0.0


def split_heads(x: Tensor, num_heads: int, num_sentences: Optional[int] = None) -> Tensor:
    """Split features [T, B, C] into heads [B, H, T, K].

    Given ``num_sentences`` = B, join the n hypotheses of each sentence: [T, B * n, C] to [B, H, n * T, K].
    """
    if num_sentences is None or num_sentences == x.size(1):
        return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
    return join_hypotheses(x, num_sentences).unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor, num_hypotheses: Optional[int] = None) -> Tensor:
    """Concatenate heads [B, H, T, K] to features [T, B, C], the inverse of :func:`split_heads`.

    Given ``num_hypotheses`` = B * n, separate the hypotheses: [B, H, n * T, K] to [T, B * n, C].
    """
    if num_hypotheses is None or num_hypotheses == x.size(0):
        return x.permute(2, 0, 1, 3).flatten(-2)
    return separate_hypotheses(x.transpose(1, 2).flatten(2), num_hypotheses)


def join_hypotheses(x: Tensor, num_sentences: int) -> Tensor:
    """Join the queries of each sentence's n hypotheses into one sequence: [T, B * n, C] to [B, n * T, C].

    Attention is faster for one long sequence than for n sequences. If T is 1, no data is copied.
    """
    n = hypotheses_per_sentence(x.size(1), num_sentences)
    return x.transpose(0, 1).reshape(num_sentences, n * x.size(0), x.size(-1))


def separate_hypotheses(x: Tensor, num_hypotheses: int) -> Tensor:
    """Separate joined hypotheses: [B, n * T, C] to [T, B * n, C], the inverse of :func:`join_hypotheses`."""
    if num_hypotheses != x.size(0):  # False for an empty batch, whose T reshape cannot infer
        x = x.reshape(num_hypotheses, -1, x.size(-1))
    return x.transpose(0, 1)


def project_packed(linear: nn.Linear, packed: Tensor, num_heads: int) -> Tensor:
    """Project the packed sequence P [L, B, C], and split the result into heads [B, H, L, K].

    If P is expanded over the batch, so that its stride is 0, it is projected only once.
    """
    x = packed[:, :1] if packed.stride(1) == 0 else packed
    return split_heads(linear(x), num_heads).expand(packed.size(1), -1, -1, -1)


def hypotheses_per_sentence(num_hypotheses: int, num_sentences: int) -> int:
    """Return the number of hypotheses per sentence. Raise an InputError if it is not an integer."""
    if num_hypotheses == num_sentences:
        return 1
    if num_hypotheses % num_sentences:
        raise InputError(
            f"{num_hypotheses} hypotheses cannot belong to {num_sentences} sentences. "
            "Pass equally many for each sentence"
        )
    return num_hypotheses // num_sentences
