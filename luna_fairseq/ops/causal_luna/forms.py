"""Causal Luna attention over whole sequences, and the choice among its implementations (forms)."""

from typing import FrozenSet, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.attention import is_recording_graph
from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.comparison import check_triton_results, supports_triton
from luna_fairseq.ops.causal_luna.naive import naive_causal_luna
from luna_fairseq.ops.causal_luna.parallel import parallel_causal_luna
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna
from luna_fairseq.ops.forms import Form, FormTable, never, otherwise

# Compute capabilities on which the Triton kernels were measured to be faster than parallel (half precision)
FASTER_WITH_TRITON: FrozenSet[Tuple[int, int]] = frozenset({(9, 0)})


def prefers_parallel(q: Tensor, *others: Tensor) -> bool:
    """Return True if the parallel implementation is chosen by default: on a GPU in eager mode."""
    return q.is_cuda and not is_recording_graph()


def prefers_triton(q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor) -> bool:
    """Return True if the Triton kernels are chosen by default for these inputs.

    The kernels are chosen on the GPUs in ``FASTER_WITH_TRITON``, in half precision and eager mode, if they
    support the inputs.
    """
    if not q.is_cuda or torch.version.cuda is None or is_recording_graph():
        return False
    if q.dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.cuda.get_device_capability(q.device) not in FASTER_WITH_TRITON:
        return False
    return supports_triton(q, k, v, pack_weights)


CAUSAL_FORMS = FormTable(
    "causal attention",
    Form(
        "triton",
        "a GPU of FASTER_WITH_TRITON (H100, H200), half precision, supported sizes, no graph",
        "a fifth to half of the time of parallel on an H100, and a fifth of its memory",
        prefers_triton,
        supports_triton,
    ),
    Form(
        "parallel",
        "a GPU, no graph",
        "4 ms for 4,096 positions on an H100, in batched products; chunk takes 26 ms on an H200",
        prefers_parallel,
    ),
    Form(
        "chunk",
        "otherwise",
        "memory: T x L in place of T x K x L, in matrix products",
        otherwise,
    ),
    Form("naive", "if forced", "the definition", never),
)
BACKENDS = ("auto", "naive", "chunk", "parallel", "triton")  # "auto", and the names in CAUSAL_FORMS


def causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    backend: str = "auto",
    log_decay: Optional[Tensor] = None,
) -> Tensor:
    """Compute causal Luna attention over a whole sequence.

    For the query q_t, keys k_j, values v_j and pack weights a_j, the output y_t at position t is::

        u_t = softmax(K^-0.5 (1 / t) sum_{j<=t} (q_t . k_j) a_j)     unpack weights [L]
        y_t = (1 / t) sum_{j<=t} (u_t . a_j) v_j                     output [K]

    With decay, a decayed mean replaces (1 / t) times the sum over positions.

    Shapes: batch size B, H heads, T positions, head width K, and L rows of the packed sequence P.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5.
        k: keys [B, H, T, K].
        v: values [B, H, T, K]. Passing the same tensor as ``k`` (tied attention) saves time.
        pack_weights: pack weights [B, H, T, L], one per position and row of P, from
            :func:`causal_pack_weights`.
        packed_padding_mask: mask [B, L], True at masked rows of P. If all are masked, the output is zero.
        key_padding_mask: mask [B, T], True at padding. Padding is excluded from the sums over positions and
            from the position counts.
        dropout: dropout probability of the unpack weights.
        backend: implementation, "naive", "chunk", "parallel" or "triton". "auto" selects triton on GPUs where
            it was measured to be faster, parallel on other GPUs, and chunk elsewhere. Before its first use,
            triton is compared with chunk on random inputs. Only naive and parallel have second derivatives.
        log_decay: log decay per position of each head, [H], negative and finite. None, as in the paper, means
            no decay.

    Returns:
        The output [B, H, T, K] in the dtype of ``q``.

    Raises:
        ValueError: The backend is unknown, does not support these inputs on this device, or fails the
            comparison.

    Example:
        >>> import torch
        >>> x, weights = torch.randn(2, 8, 100, 64), torch.rand(2, 8, 100, 16)  # T = 100, L = 16
        >>> causal_luna(x, x, x, weights, backend="chunk").shape
        torch.Size([2, 8, 100, 64])
    """
    if backend not in BACKENDS:
        raise ValueError(f"Expected one of {', '.join(BACKENDS)} as Luna backend, got {backend!r}.")
    inputs = q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout
    backend = CAUSAL_FORMS.choose(q, k, v, pack_weights, form=None if backend == "auto" else backend)
    if backend == "naive":
        return naive_causal_luna(*inputs, log_decay)[0]
    if backend == "chunk":
        return chunk_causal_luna(*inputs, log_decay=log_decay)
    if backend == "parallel":
        return parallel_causal_luna(*inputs, log_decay)
    check_triton_results(q, k, v, pack_weights, log_decay is not None)
    return triton_causal_luna(*inputs, log_decay)
