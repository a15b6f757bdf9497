"""Helpers for the two Luna attention modules: argument checks, projections, and splitting into heads.

Modules use the layout [T, B, C] of T positions, batch size B and width C. The functions in ``ops`` use the
layout [B, H, T, K] of H heads of dimension K.
"""

from typing import Iterable, Optional

from torch import Tensor, nn

from luna_fairseq.errors import InputError

# Gains of the Xavier uniform initialization for the input projections and for the output projection.
GAIN, OUTPUT_GAIN = 2**-0.5, 1.0


def check_heads(embed_dim: int, num_heads: int, name: str = "heads") -> None:
    """Check that the model width is a multiple of the number of heads.

    Args:
        embed_dim: model width.
        num_heads: number of heads.
        name: name of the heads in the error message (default: "heads").

    Raises:
        InputError: ``embed_dim`` is not a multiple of ``num_heads``, or ``num_heads`` is less than 1.
    """
    if num_heads < 1 or embed_dim % num_heads:
        raise InputError(
            f"embedding width {embed_dim} is not divisible by {num_heads} {name}. Change one of the two"
        )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Check that the value of an option is one of its choices.

    Args:
        name: name of the option in the error message.
        value: value of the option.
        choices: allowed values.

    Raises:
        InputError: ``value`` is not one of ``choices``.
    """
    if value not in choices:
        raise InputError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")


class ProjectingAttention(nn.Module):
    """Base class of attention modules that can re-initialize their linear projections.

    The projections are the direct submodules of class ``nn.Linear``. "out_proj" is the output projection.
    """

    def reset_projections(self) -> None:
        """Initialize the weights of all projections with the Xavier uniform scheme.

        Models that initialize all of their linear layers differently call this method afterwards.
        """
        for name, child in self.named_children():
            if isinstance(child, nn.Linear):
                nn.init.xavier_uniform_(child.weight, gain=OUTPUT_GAIN if name == "out_proj" else GAIN)


def build_projection(embed_dim: int, gain: float = GAIN) -> nn.Linear:
    """Build a square linear layer with Xavier uniform weights, for an attention module.

    The bias keeps torch's default initialization, as in the authors' code.

    Args:
        embed_dim: number of input and output features.
        gain: gain of the Xavier initialization (default: 1 / sqrt(2)).

    Returns:
        The initialized layer.
    """
    linear = nn.Linear(embed_dim, embed_dim)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    return linear


def build_output_projection(embed_dim: int) -> nn.Linear:
    """Build the output projection of an attention module.

    The weights have a Xavier uniform initialization with gain 1, and the bias is zero.

    Args:
        embed_dim: number of input and output features.

    Returns:
        The initialized layer.
    """
    linear = build_projection(embed_dim, gain=OUTPUT_GAIN)
    nn.init.zeros_(linear.bias)
    return linear


def dropout_probability(module: nn.Dropout) -> float:
    """Return the current dropout probability of a dropout module.

    It is passed to attention functions that apply dropout themselves.

    Args:
        module: dropout submodule of an attention module.

    Returns:
        ``module.p`` in training, or in evaluation with fairseq's ``--retain-dropout``. Otherwise 0.
    """
    return module.p if module.training or getattr(module, "apply_during_inference", False) else 0.0


def split_heads(x: Tensor, num_heads: int, sentences: Optional[int] = None) -> Tensor:
    """Split the feature vector of each position into heads.

    In beam search, a batch contains n hypotheses (candidate translations) per source sentence. If
    ``sentences`` is given, the positions of all hypotheses of a sentence are joined into one sequence of n *
    T positions.

    Shapes: T positions, width C, H heads of dimension K = C / H, B sentences with n hypotheses each.

    Args:
        x: features [T, B * n, C].
        num_heads: number of heads H.
        sentences: number of sentences B (default: None, n is 1).

    Returns:
        Heads [B, H, n * T, K].
    """
    if sentences is None or sentences == x.size(1):
        return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
    return join_hypotheses(x, sentences).unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor, hypotheses: Optional[int] = None) -> Tensor:
    """Concatenate the heads of each position, the inverse of :func:`split_heads`.

    In beam search, a batch contains n hypotheses (candidate translations) per source sentence. If
    ``hypotheses`` is given, the n * T positions of a sentence are separated into its hypotheses.

    Shapes: T positions, H heads of dimension K, B sentences with n hypotheses each.

    Args:
        x: heads [B, H, n * T, K].
        hypotheses: number of hypotheses B * n (default: None, n is 1).

    Returns:
        Features [T, B * n, H * K].
    """
    if hypotheses is None or hypotheses == x.size(0):
        return x.permute(2, 0, 1, 3).flatten(-2)
    return separate_hypotheses(x.transpose(1, 2).flatten(2), hypotheses)


def join_hypotheses(x: Tensor, sentences: int) -> Tensor:
    """Join the queries of all hypotheses of a source sentence into one sequence.

    In beam search, the n hypotheses (candidate translations) of a sentence attend to the same source and are
    adjacent in the batch. Attention is faster for one sequence of n * T queries than for n sequences of T
    queries.

    Args:
        x: queries [T, B * n, C] of width C, for T positions and B sentences.
        sentences: number of sentences B.

    Returns:
        Queries [B, n * T, C]. In a decoding step (T = 1), no data is copied.

    Raises:
        InputError: The number of hypotheses is not a multiple of the number of sentences.
    """
    n = hypotheses_per_sentence(x.size(1), sentences)
    return x.transpose(0, 1).reshape(sentences, n * x.size(0), x.size(-1))


def separate_hypotheses(x: Tensor, hypotheses: int) -> Tensor:
    """Separate the joined outputs of each source sentence into the outputs of its hypotheses.

    In beam search, a batch contains n hypotheses (candidate translations) per source sentence. This function
    is the inverse of :func:`join_hypotheses`.

    Args:
        x: outputs [B, n * T, C] of width C, for T positions and B sentences with n hypotheses each.
        hypotheses: number of hypotheses B * n.

    Returns:
        Outputs [T, B * n, C].
    """
    return x.reshape(hypotheses, -1, x.size(-1)).transpose(0, 1)


def project_packed(linear: nn.Linear, packed: Tensor, num_heads: int) -> Tensor:
    """Project the packed sequence P, and split the result into heads.

    If P is the same for all examples of the batch (stride 0), it is projected once and expanded.

    Args:
        linear: projection from C to C features.
        packed: packed sequence P [L, B, C], for L rows, batch size B and width C.
        num_heads: number of heads H.

    Returns:
        Projected P [B, H, L, K], with heads of dimension K = C / H.
    """
    x = packed[:, :1] if packed.stride(1) == 0 else packed
    return split_heads(linear(x), num_heads).expand(packed.size(1), -1, -1, -1)


def hypotheses_per_sentence(hypotheses: int, sentences: int) -> int:
    """Return the number of hypotheses per source sentence in beam search.

    Args:
        hypotheses: number of hypotheses in the batch.
        sentences: number of source sentences in the batch.

    Returns:
        Hypotheses per sentence; 1 outside of beam search.

    Raises:
        InputError: ``hypotheses`` is not a multiple of ``sentences``.
    """
    if hypotheses % sentences:
        raise InputError(
            f"{hypotheses} hypotheses cannot belong to {sentences} sentences. "
            "Pass equally many for each sentence"
        )
    return hypotheses // sentences
