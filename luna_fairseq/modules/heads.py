"""What both Luna attentions share: checks, projections, and the change between time-first modules and
batch-first ops."""

from typing import Iterable

from torch import Tensor, nn

from luna_fairseq.errors import InputError


def check_heads(embed_dim: int, num_heads: int, what: str = "heads") -> None:
    """Raise InputError unless the width is a multiple of the number of heads."""
    if num_heads < 1 or embed_dim % num_heads:
        raise InputError(
            f"embedding width {embed_dim} is not divisible by {num_heads} {what}: change one of the two"
        )


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise InputError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise InputError(f"unknown {what} {value!r}; choose one of {', '.join(choices)}")


# Of Xavier's uniform initialisation, for the weight of an attention's projections and of the last of them.
GAIN, OUTPUT_GAIN = 2**-0.5, 1.0


def projection(embed_dim: int, gain: float = GAIN) -> nn.Linear:
    """A C x C linear map. Xavier uniform weight; the bias keeps torch's default, as in the authors' code."""
    linear = nn.Linear(embed_dim, embed_dim)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    return linear


class ProjectingAttention(nn.Module):
    """An attention whose children of class Linear are its projections."""

    def reset_projections(self) -> None:
        """Give the projections' weights the values that they begin with, after a model has given them
        others."""
        for name, part in self.named_children():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight, gain=OUTPUT_GAIN if name == "out_proj" else GAIN)


def output_projection(embed_dim: int) -> nn.Linear:
    """The last projection of an attention: gain 1 and no bias to begin with."""
    linear = projection(embed_dim, gain=OUTPUT_GAIN)
    nn.init.zeros_(linear.bias)
    return linear


def dropout_probability(module: nn.Module) -> float:
    """The probability for a dropout inside an op: when ``module`` would drop, in training or by fairseq's
    --retain-dropout."""
    return module.p if module.training or getattr(module, "apply_during_inference", False) else 0.0


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[T, B, C] -> [B, H, T, K], without a copy."""
    return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)


def packed_heads(linear: nn.Module, packed: Tensor, num_heads: int) -> Tensor:
    """The heads [B, H, L, K] of P [L, B, C], projected. P that is expanded over the sentences, as the learned
    one is where dropout has not touched it, is projected once for all."""
    x = packed[:, :1] if packed.stride(1) == 0 else packed
    return split_heads(linear(x), num_heads).expand(packed.size(1), -1, -1, -1)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, K] -> [T, B, C]."""
    return x.permute(2, 0, 1, 3).flatten(-2)


def hypotheses_each(hypotheses: int, sentences: int) -> int:
    """n. Raises InputError unless every sentence has as many hypotheses."""
    if hypotheses % sentences:
        raise InputError(f"{hypotheses} hypotheses cannot belong to {sentences} sentences, as many to each")
    return hypotheses // sentences


def beams_to_positions(x: Tensor, n: int) -> Tensor:
    """[B n, H, T, K] -> [B, H, n T, K]: the n hypotheses of a sentence as more queries to what they have in
    common."""
    if n == 1:
        return x
    return x.unflatten(0, (-1, n)).transpose(1, 2).flatten(2, 3)


def positions_to_beams(x: Tensor, n: int) -> Tensor:
    """[B, H, n T, K] -> [B n, H, T, K]."""
    if n == 1:
        return x
    return x.unflatten(2, (n, -1)).transpose(1, 2).flatten(0, 1)
