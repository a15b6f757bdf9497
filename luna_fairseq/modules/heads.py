"""Helpers shared by the two Luna attentions: argument checks, projections, and the layout of heads.

Modules are time-first [T, B, C]; ops are batch-first with separate heads [B, H, T, K].
"""

from typing import Any, Callable, Iterable, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError

# Gains of the Xavier uniform initialisation of an attention's projections, and of its output projection.
GAIN, OUTPUT_GAIN = 2**-0.5, 1.0


def check_heads(embed_dim: int, num_heads: int, name: str = "heads") -> None:
    """Check that the model width is a multiple of the number of heads.

    Args:
        embed_dim: model width C.
        num_heads: number of heads H.
        name: name of the heads in the error message (default: "heads").

    Raises:
        InputError: ``embed_dim`` is not a multiple of ``num_heads``, or ``num_heads`` is below 1.
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
    """Base class of attentions whose direct children of class ``nn.Linear`` are the projections."""

    def reset_projections(self) -> None:
        """Initialise the weights of all projections again.

        A model calls this method after it has initialised all linear layers in its own way.
        """
        for name, child in self.named_children():
            if isinstance(child, nn.Linear):
                nn.init.xavier_uniform_(child.weight, gain=OUTPUT_GAIN if name == "out_proj" else GAIN)


def build_projection(embed_dim: int, gain: float = GAIN) -> nn.Linear:
    """Build a linear map from C to C features with a Xavier uniform weight.

    The bias keeps torch's default initialisation, as in the authors' code.

    Args:
        embed_dim: model width C.
        gain: gain of the Xavier initialisation (default: 1 / sqrt(2)).
    """
    linear = nn.Linear(embed_dim, embed_dim)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    return linear


def build_output_projection(embed_dim: int) -> nn.Linear:
    """Build the output projection of an attention, with gain 1 and a bias of zeros.

    Args:
        embed_dim: model width C.
    """
    linear = build_projection(embed_dim, gain=OUTPUT_GAIN)
    nn.init.zeros_(linear.bias)
    return linear


def dropout_probability(module: nn.Dropout) -> float:
    """Return the dropout probability to apply inside an op, which is 0 in evaluation.

    Args:
        module: dropout module of an attention.

    Returns:
        Probability of the module in training or with fairseq's ``--retain-dropout``, and 0 otherwise.
    """
    return module.p if module.training or getattr(module, "apply_during_inference", False) else 0.0


def linear_parameters(layer: nn.Module) -> Optional[Tuple[Tensor, Tensor]]:
    """Return the weight and the bias of a linear layer, or None if a call may do more than multiply and add.

    A layer that stores its weight in another form has a method ``linear_parameters``, which returns the
    weight [outputs, inputs] and the bias [outputs].

    Args:
        layer: projection of an attention, which may have been replaced or have hooks.
    """
    if layer._forward_pre_hooks or layer._forward_hooks:
        return None
    if type(layer) is nn.Linear:
        weight, bias = layer.weight, layer.bias
    else:
        read: Callable[[], Tuple[Any, Any]] = getattr(layer, "linear_parameters", lambda: (None, None))
        weight, bias = read()
    return None if weight is None or bias is None else (weight, bias)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the features [T, B, C] into heads [B, H, T, K], without a copy.

    Args:
        x: features [T, B, C].
        num_heads: number of heads H.
    """
    return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads [B, H, T, K] into features [T, B, C].

    Args:
        x: values [B, H, T, K] of all heads.
    """
    return x.permute(2, 0, 1, 3).flatten(-2)


def project_packed(linear: nn.Linear, packed: Tensor, num_heads: int) -> Tensor:
    """Project the packed sequence P and split the result into heads.

    If P is the same for the whole batch (stride 0), it is projected once and expanded.

    Args:
        linear: projection from C to C features.
        packed: packed sequence P [L, B, C].
        num_heads: number of heads H.

    Returns:
        Projected P [B, H, L, K].
    """
    x = packed[:, :1] if packed.stride(1) == 0 else packed
    return split_heads(linear(x), num_heads).expand(packed.size(1), -1, -1, -1)


def rows_per_sentence(rows: int, sentences: int) -> int:
    """Return n, the number of consecutive hypotheses that share a source sentence.

    Args:
        rows: number of hypotheses, B n.
        sentences: number of source sentences B.

    Raises:
        InputError: ``rows`` is not a multiple of ``sentences``.
    """
    if rows % sentences:
        raise InputError(
            f"{rows} hypotheses cannot belong to {sentences} sentences. Pass equally many for each sentence"
        )
    return rows // sentences


def fold_rows(x: Tensor, n: int) -> Tensor:
    """Concatenate the queries of the n hypotheses of each sentence along the time dimension.

    All these queries attend to the same source. One example with n T queries therefore replaces n examples
    with T queries each.

    Args:
        x: heads [B n, H, T, K] of all hypotheses.
        n: number of consecutive hypotheses that share a sentence.

    Returns:
        Heads [B, H, n T, K] of all sentences.
    """
    if n == 1:
        return x
    if x.size(2) == 1:  # fewer operations for a decoding step
        return x.reshape(-1, n, x.size(1), x.size(3)).transpose(1, 2)
    return x.unflatten(0, (-1, n)).transpose(1, 2).flatten(2, 3)


def unfold_rows(x: Tensor, n: int) -> Tensor:
    """Split the n T positions of each sentence into its n hypotheses again.

    This function is the inverse of :func:`fold_rows`.

    Args:
        x: heads [B, H, n T, K] of all sentences.
        n: number of consecutive hypotheses that share a sentence.

    Returns:
        Heads [B n, H, T, K] of all hypotheses.
    """
    if n == 1:
        return x
    if x.size(2) == n:  # fewer operations for a decoding step
        return x.transpose(1, 2).reshape(-1, x.size(1), 1, x.size(3))
    return x.unflatten(2, (n, -1)).transpose(1, 2).flatten(0, 1)
