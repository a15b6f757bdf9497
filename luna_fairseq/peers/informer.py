"""Information organization block, a replacement for the encoder's feed-forward network.

Source: Estupinan Ojeda et al., "Informer, an Information Organization Transformer Architecture". That paper
is unrelated to the Informer for time series.

The block applies four steps along the model width: a convolution with equal kernel size and stride, leaky
ReLU with max-pooling by two, max-unpooling to the positions of the maxima, and a transposed convolution. The
last two steps restore the width.

The paper does not give the sizes. Its parameter counts, 135,368,888 with the feed-forward network and
126,613,016 with this block, fit a kernel of 8 with the n positions as channels: 2 (8 n^2 + n) parameters a
layer, for n = 200. Unpooling to the positions of the maxima is our own choice.
"""

from typing import Optional

from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.peers.attention import count_left_padding, roll_left

# Kernel and stride of max-pooling.
POOL = 2


class InformationBlock(nn.Module):
    """Convolutional block that replaces the feed-forward network of a Transformer layer.

    Padding is set to zero. Left-padded sequences are shifted to position 0, and the output is shifted back.

    Args:
        embed_dim: width of the model.
        longest: maximum sequence length. The convolutions have one channel per position.
        kernel: kernel size and stride of the convolutions; twice the kernel must divide ``embed_dim``.
    """

    def __init__(self, embed_dim: int, longest: int, kernel: int):
        super().__init__()
        if kernel < 1 or embed_dim % (kernel * POOL):
            raise InputError(
                f"Expected twice --information-kernel to divide the width {embed_dim}, got a kernel of "
                f"{kernel}. Use another kernel."
            )
        self.longest = longest
        self.gather_conv = nn.Conv1d(longest, longest, kernel, stride=kernel)
        self.spread_conv = nn.ConvTranspose1d(longest, longest, kernel, stride=kernel)

    def forward(self, x: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Apply the block to x [T, B, C]. ``padding_mask`` is [B, T] or None.

        Raise InputError if a sequence has more than ``longest`` tokens.
        """
        T = length = x.size(0)
        if T > self.longest and padding_mask is not None:
            length = int((~padding_mask).sum(dim=1).max())
        if length > self.longest:
            raise InputError(
                f"Expected at most {self.longest} tokens for the information block, got {length}. Shorten "
                "the sequence, or train with more positions."
            )
        x = x.transpose(0, 1)
        if padding_mask is not None:
            x = roll_left(x.masked_fill(padding_mask.unsqueeze(-1), 0.0), count_left_padding(padding_mask))
        x = self.gather_conv(F.pad(x, (0, 0, 0, self.longest - T)))  # removes padding beyond `longest`
        x, maxima = F.max_pool1d(F.leaky_relu(x), POOL, return_indices=True)
        x = self.spread_conv(F.max_unpool1d(x, maxima, POOL))[:, :T]
        if T > self.longest:
            x = F.pad(x, (0, 0, 0, T - self.longest))
        if padding_mask is not None:
            x = roll_left(x, -count_left_padding(padding_mask))
        return x.transpose(0, 1)
