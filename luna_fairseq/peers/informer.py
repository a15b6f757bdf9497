"""Informer's information organisation block (Estupinan Ojeda et al., "Informer, an Information Organization
Transformer Architecture"; not the Informer of time series): in the encoder, in the place of feed-forward.

A convolution along the width of the model with equal kernel and stride, leaky ReLU and max-pooling by two,
then their mirror: unpooling to where the maxima stood and a transposed convolution. What the paper leaves
open follows from its parameter counts, 135,368,888 with feed-forward and 126,613,016 with this block. Their
difference is met exactly by a kernel of 8 (d_model / 64, not d_model / h), where the n positions are the
channels of both convolutions, in and out: 2 (n n 8 + n) = 640,400 parameters a layer with n = 200, for
feed-forward's 2,099,712. The block then mixes positions, too. Keeping the places of the maxima, as
max-unpooling does, is our choice: it has no parameters.
"""

from typing import Optional

from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.peers.attention import padded_left, rotated

POOL = 2


class InformationBlock(nn.Module):
    """[T, B, C] -> [T, B, C]. Places count from a sentence's first real token; padding counts for zeros.

    Args:
        embed_dim: C
        longest: n, the most tokens of a sequence
        kernel: kernel and stride of the convolutions

    Raises:
        InputError: a kernel that does not divide half the width
    """

    def __init__(self, embed_dim: int, longest: int, kernel: int):
        super().__init__()
        if kernel < 1 or embed_dim % (kernel * POOL):
            raise InputError(
                f"--information-kernel {kernel}: twice the kernel must divide the width, {embed_dim}"
            )
        self.longest = longest
        self.gather_conv = nn.Conv1d(longest, longest, kernel, stride=kernel)
        self.spread_conv = nn.ConvTranspose1d(longest, longest, kernel, stride=kernel)

    def forward(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        """x [T, B, C] and its padding [B, T] or None. Raises InputError for a sequence that is too long."""
        T = x.size(0)
        if T > self.longest:
            raise InputError(
                f"a sequence has {T} tokens, and the information block ends at {self.longest}: "
                "shorten it, or train with more positions"
            )
        x = x.transpose(0, 1)
        if padding is not None:
            x = rotated(x.masked_fill(padding.unsqueeze(-1), 0.0), padded_left(padding))
        x = self.gather_conv(F.pad(x, (0, 0, 0, self.longest - T)))
        x, places = F.max_pool1d(F.leaky_relu(x), POOL, return_indices=True)
        x = self.spread_conv(F.max_unpool1d(x, places, POOL))[:, :T]
        return (x if padding is None else rotated(x, -padded_left(padding))).transpose(0, 1)
