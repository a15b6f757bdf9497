"""Operations and bytes of attention on projected heads, by the algorithms that compute it."""

from dataclasses import dataclass

from luna_fairseq.costs.roofline import Work

ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
FLOAT = 4


@dataclass(frozen=True)
class Heads:
    """B H heads of T positions and width K, with L rows of P.

    Attributes:
        dtype: of what is multiplied
        tied: keys are values
    """

    heads: int
    length: int
    width: int
    projection_length: int
    dtype: str
    tied: bool = False

    @property
    def positions(self) -> int:
        """Of all heads."""
        return self.heads * self.length


def causal_luna(shape: Heads, backward: bool, chunk: int) -> Work:
    """Chunkwise causal attention with its pack weights, chunks of ``chunk`` positions multiplied whole.

    Bytes are the inputs and outputs once, and the inputs again in the backward pass; products of the inputs
    run in their type, those with float32 numbers in tf32 (float32 inputs: three of tf32 each).
    """
    c, K, L = min(chunk, shape.length), shape.width, shape.projection_length
    pack, scores = 2 * K * L, 2 * c * K
    inner = 2 * c * (K + 2 * L) + 8 * K * L  # logits, mixed, output; two states read, two carried on
    native, mixed = pack + scores, inner
    item, streams = ITEMSIZE[shape.dtype], 3 if shape.tied else 4  # q, k, v and pack keys
    numbers = streams + 1
    if backward:
        native += 2 * pack + 4 * scores
        mixed += 2 * c * (3 * K + 7 * L) + 26 * K * L
        numbers += streams + 1 + streams  # inputs and the output's gradient again, gradients
    work = {shape.dtype: float(native), "tf32": float(mixed)}
    if shape.dtype == "float32":
        work = {"tf32": 3.0 * (native + mixed)}
    return Work(work, float(numbers * K * item)) * shape.positions


def softmax(shape: Heads, backward: bool, causal: bool) -> Work:
    """Fused softmax attention over as many keys as queries: weights are never written, but computed again."""
    seen = shape.length / 2 if causal else shape.length
    products = 7 if backward else 2
    numbers = 4 + (8 if backward else 0)
    flops = {shape.dtype: products * 2.0 * seen * shape.width}
    return Work(flops, float(numbers * shape.width * ITEMSIZE[shape.dtype])) * shape.positions


def pack_and_unpack(shape: Heads, backward: bool, local_parts: int = 0) -> Work:
    """Luna's bidirectional attention: pack, and unpack from the result and from the tokens of so many parts
    around."""
    L = shape.projection_length
    read = 2 * L + local_parts * shape.length / L
    products = 2 * (3.5 if backward else 1)
    # Keys and values are laid out once for each part of a window, and read from there.
    numbers = (4 + 4 * local_parts) * (3 if backward else 1)
    flops = {shape.dtype: products * 2.0 * read * shape.width}
    return Work(flops, float(numbers * shape.width * ITEMSIZE[shape.dtype])) * shape.positions
