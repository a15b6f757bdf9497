"""What both Luna attentions share: checks, projections, and the change between time-first modules and
batch-first ops."""

from typing import Iterable

from torch import Tensor, nn

from luna_fairseq.errors import InputError

# Of Xavier's uniform initialisation, for the weight of an attention's projections and of the last of them.
GAIN, OUTPUT_GAIN = 2**-0.5, 1.0


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


class ProjectingAttention(nn.Module):
    """An attention whose children of class Linear are its projections."""

    def reset_projections(self) -> None:
        """Initialise the projections' weights again, after a model has given them others."""
        for name, part in self.named_children():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight, gain=OUTPUT_GAIN if name == "out_proj" else GAIN)


def projection(embed_dim: int, gain: float = GAIN) -> nn.Linear:
    """A C x C linear map. Xavier uniform weight; the bias keeps torch's default, as in the authors' code."""
    linear = nn.Linear(embed_dim, embed_dim)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    return linear


def output_projection(embed_dim: int) -> nn.Linear:
    """The last projection of an attention: gain 1, and a bias of zeros."""
    linear = projection(embed_dim, gain=OUTPUT_GAIN)
    nn.init.zeros_(linear.bias)
    return linear


def dropout_probability(module: nn.Dropout) -> float:
    """For a dropout inside an op: in training, and always by fairseq's --retain-dropout."""
    return module.p if module.training or getattr(module, "apply_during_inference", False) else 0.0


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[T, B, C] -> [B, H, T, K], without a copy."""
    return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, K] -> [T, B, C]."""
    return x.permute(2, 0, 1, 3).flatten(-2)


def packed_heads(linear: nn.Linear, packed: Tensor, num_heads: int) -> Tensor:
    """Project P [L, B, C] and split the result into heads [B, H, L, K]. If P is the same for the whole batch
    (stride 0), it is projected once and expanded."""
    x = packed[:, :1] if packed.stride(1) == 0 else packed
    return split_heads(linear(x), num_heads).expand(packed.size(1), -1, -1, -1)


def rows_per_sentence(rows: int, sentences: int) -> int:
    """Return n, the number of rows that share a sentence: rows that follow one another share it.

    Raises:
        InputError: the rows cannot be divided among the sentences
    """
    if rows % sentences:
        raise InputError(f"{rows} hypotheses cannot belong to {sentences} sentences, as many to each")
    return rows // sentences


def fold_rows(x: Tensor, n: int) -> Tensor:
    """Join n rows that share a sentence into one, [B n, H, T, K] to [B, H, n T, K]: their positions all read
    what belongs to the sentence."""
    return x if n == 1 else x.unflatten(0, (-1, n)).transpose(1, 2).flatten(2, 3)


def unfold_rows(x: Tensor, n: int) -> Tensor:
    """Undo :func:`fold_rows`: [B, H, n T, K] to [B n, H, T, K]."""
    return x if n == 1 else x.unflatten(2, (n, -1)).transpose(1, 2).flatten(0, 1)
