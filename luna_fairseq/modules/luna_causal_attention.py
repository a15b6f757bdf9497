"""Luna causal attention, the self-attention of a decoder (Luna, section 3.3)."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.heads import (
    build_output_projection,
    build_projection,
    check_choice,
    check_heads,
    dropout_probability,
    hypotheses_per_sentence,
    merge_heads,
    project_packed,
    split_heads,
)
from luna_fairseq.modules.memory import CausalMemory, LunaCausalState
from luna_fairseq.modules.options import DecoderOptions
from luna_fairseq.ops.absorbed import has_hooks, split_input_projection
from luna_fairseq.ops.causal_luna import (
    BACKENDS,
    PACK_ACTIVATIONS,
    TokenCounts,
    causal_luna,
    causal_pack_weights,
    naive_causal_luna,
    recurrent_causal_luna,
    why_not_triton_here,
)
from luna_fairseq.ops.causal_luna.inputs import PACK_WEIGHT_FORMS, absorbed_pack_weights


def check_triton() -> None:
    """Raise an InputError if the Triton kernels cannot run on this machine."""
    reason = why_not_triton_here(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if reason:
        raise InputError(f"--luna-backend triton cannot be used here: {reason}. Use auto")


class FusedProjections(nn.Module):
    """Base class of modules that apply several linear layers to one input in a single matrix product.

    Args:
        layers: linear layers to fuse. They remain submodules of the attention module.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__()
        self.layers: Tuple[nn.Module, ...] = tuple(layers)  # torch does not register submodules in a tuple

    def replaces(self, layers: Sequence[nn.Module]) -> bool:
        """Return True if ``layers`` are the fused layers, without hooks, which this module would not run."""
        return tuple(layers) == self.layers and not any(map(has_hooks, layers))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers to x [..., in_features], and concatenate the outputs along the last dimension."""
        raise NotImplementedError


class LunaCausalAttention(nn.Module):
    """Causal self-attention through a packed sequence P, with a constant-size state (Luna, section 3.3).

    Each token attends to L vectors, one for each of the L rows of P. The vector of a row is a weighted sum
    over the token itself and all earlier tokens. The weights depend on the similarity of row and token. P
    itself is not updated. :meth:`read` projects P, and :meth:`forward` takes the result and the queries.

    Shapes: T positions, width C, H heads of dimension K = C / H, B sentences with n hypotheses each. The
    hypotheses (candidate translations in beam search) of a sentence use the same P and are adjacent in the
    batch. In training n is 1.

    Args:
        embed_dim: width C of the queries, of P and of the output.
        num_heads: number of heads.
        dropout: dropout probability of the attention weights.
        untie_kv: use separate projections for the keys and values of unpack attention.
        pack_activation: activation applied to the pack attention logits, "softplus" or "elu".
        backend: implementation for whole sequences: "auto", "naive", "chunk", "parallel" or "triton" (see
            :func:`luna_fairseq.ops.causal_luna`).
        builders: functions that build dropout and linear layers (default: torch's).

    Attributes:
        watcher: callback used to log :meth:`weights`, or None. For whole sequences, :meth:`forward` calls it
            with this module, query, memory and key_padding_mask.

    Example:
        >>> import torch
        >>> attention = LunaCausalAttention(embed_dim=64, num_heads=8)
        >>> query, packed = torch.randn(20, 4, 64), torch.randn(16, 4, 64)
        >>> output, _ = attention(query, attention.read(packed))
        >>> output.shape
        torch.Size([20, 4, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        untie_kv: bool = False,
        pack_activation: str = "softplus",
        backend: str = "auto",
        builders: Builders = TORCH,
    ):
        super().__init__()
        check_heads(embed_dim, num_heads, "attention heads")
        check_choice("pack activation", pack_activation, PACK_ACTIVATIONS)
        check_choice("Luna backend", backend, BACKENDS)
        if backend == "triton":
            check_triton()
        self.num_heads = num_heads
        self.untie_kv = untie_kv
        self.pack_activation = pack_activation
        self.backend = backend
        self.watcher: Optional[Callable[..., None]] = None
        self.dropout_module = builders.dropout(dropout, "LunaCausalAttention")

        kv_names = ("unpack_k", "unpack_v") if untie_kv else ("unpack_kv",)
        for name in ("pack_q", "pack_k", "unpack_q", *kv_names):
            self.add_module(f"{name}_proj", builders.linear(build_projection(embed_dim)))
        # All projections of X in one product, set when a model is prepared for decoding on a CPU.
        self.fused_x_proj: Optional[FusedProjections] = None
        self.out_proj = builders.linear(build_output_projection(embed_dim))

    def read(self, packed: Tensor, packed_padding_mask: Optional[Tensor] = None) -> CausalMemory:
        """Project the packed sequence P [L, B, C] for all calls of :meth:`forward`.

        P is [L, 1, C] if all sequences share it. ``packed_padding_mask`` [B, L] is True at padded rows. The
        sequences that share P may have different masks. Raise an InputError if P and mask differ in B.
        """
        if packed_padding_mask is not None:
            B, num_masks = packed.size(1), packed_padding_mask.size(0)
            if B != num_masks and 1 not in (B, num_masks):
                raise InputError(
                    f"Expected a padding mask of P for {B} sentences, got one for {num_masks} sentences. "
                    "Pass a mask [B, L] with P [L, B, C]"
                )
        return CausalMemory(project_packed(self.pack_q_proj, packed, self.num_heads), packed_padding_mask)

    def forward(
        self,
        query: Tensor,
        memory: CausalMemory,
        state: Optional[LunaCausalState] = None,
        key_padding_mask: Optional[Tensor] = None,
        keep_state: Optional[bool] = None,
        counts: Optional[TokenCounts] = None,
    ) -> Tuple[Tensor, Optional[LunaCausalState]]:
        """Compute causal attention over whole sequences, or continue the sequences from ``state``.

        Args:
            query: input X [T, B * n, C], n hypotheses for each of B sentences.
            memory: packed sequence P of each of the B sentences, projected by :meth:`read`.
            state: state returned by the previous call. None at the beginning of the sequences.
            key_padding_mask: boolean mask [B * n, T], True at padding, which may be on the left or right.
            keep_state: return the state after position T (default: True if ``state`` is given).
            counts: numbers of tokens before and after this call, if a decoder has already computed them for
                all layers.

        Returns:
            Output [T, B * n, C], and the state after position T (None if ``keep_state`` is False).

        Example:
            >>> import torch
            >>> attention = LunaCausalAttention(embed_dim=64, num_heads=8)
            >>> query, packed = torch.randn(20, 4, 64), torch.randn(16, 4, 64)
            >>> memory = attention.read(packed)
            >>> prefix, state = attention(query[:10], memory, keep_state=True)
            >>> following, state = attention(query[10:11], memory, state)
        """
        pack_q, packed_padding_mask = memory.pack_q, self._repeat_mask(memory, query)
        if state is not None or keep_state:
            output, state = self._continue(
                query, pack_q, packed_padding_mask, state, key_padding_mask, counts
            )
            return output, None if keep_state is False else state
        if self.watcher is not None:
            self.watcher(self, query, memory, key_padding_mask)
        if pack_q.size(0) == 1:
            pack_q = pack_q.expand(query.size(1), -1, -1, -1)
        if PACK_WEIGHT_FORMS.choose(pack_q, query, self.pack_k_proj) == "absorbed":
            q, k, v = self._project_x(query, self.input_projections()[1:])
            key = split_input_projection(self.pack_k_proj.weight, self.pack_k_proj.bias, self.num_heads)
            weights = absorbed_pack_weights(pack_q, query, key, self.pack_activation)
        else:
            pack_k, q, k, v = self._project_x(query)
            weights = causal_pack_weights(pack_q, pack_k, self.pack_activation)
        output = causal_luna(
            q,
            k,
            v,
            self.dropout_module(weights),
            packed_padding_mask,
            key_padding_mask,
            dropout=dropout_probability(self.dropout_module),
            backend=self.backend,
            log_decay=self.log_decay(),
        )
        return self.out_proj(merge_heads(output)), None

    def _continue(
        self,
        query: Tensor,
        pack_q: Tensor,
        packed_padding_mask: Optional[Tensor],
        state: Optional[LunaCausalState],
        key_padding_mask: Optional[Tensor],
        counts: Optional[TokenCounts],
    ) -> Tuple[Tensor, LunaCausalState]:
        """Compute attention for T new positions, given ``state``, the running sums over earlier positions.

        The query is [T, B * n, C], and ``pack_q`` [B, H, L, K] the projected P. ``state`` is None if there
        are no earlier positions. ``counts`` are the numbers of tokens before and after this call. If None,
        they are computed from ``state``. Return the output [T, B * n, C] and the new state.
        """
        pack_k, q, k, v = self._project_x(query)
        output, new_state = recurrent_causal_luna(
            q,
            k,
            v,
            self.dropout_module(causal_pack_weights(pack_q, pack_k, self.pack_activation)),
            state,
            packed_padding_mask,
            key_padding_mask,
            dropout=dropout_probability(self.dropout_module),
            log_decay=self.log_decay(),
            counts=counts,
        )
        if not self.untie_kv:
            new_state = new_state._replace(value_sum=None)
        if counts is not None:
            new_state = new_state._replace(steps=None)
        return self.out_proj(merge_heads(output)), new_state

    def weights(
        self, query: Tensor, memory: CausalMemory, key_padding_mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """Compute the pack weights and the unpack weights of whole sequences, each [B * n, H, T, L]."""
        packed_padding_mask = self._repeat_mask(memory, query)
        pack_k, q, k, v = self._project_x(query)
        pack = self.dropout_module(causal_pack_weights(memory.pack_q, pack_k, self.pack_activation))
        inputs = q, k, v, pack, packed_padding_mask, key_padding_mask
        return pack, naive_causal_luna(*inputs, log_decay=self.log_decay())[1]

    def log_decay(self) -> Optional[Tensor]:
        """Return the log decay per position [H], a negative number for each head, or None for no decay.

        The contribution of a position is multiplied by ``exp(d * log_decay)`` after d more positions.
        """
        return None

    def input_projections(self) -> List[nn.Module]:
        """Return the layers that project the queries X, in this order: pack key, unpack query, key and value.

        If one projection computes both keys and values, it is the last layer.
        """
        if self.untie_kv:
            return [self.pack_k_proj, self.unpack_q_proj, self.unpack_k_proj, self.unpack_v_proj]
        return [self.pack_k_proj, self.unpack_q_proj, self.unpack_kv_proj]

    def _repeat_mask(self, memory: CausalMemory, query: Tensor) -> Optional[Tensor]:
        """Return the padding mask of P [B * n, L] for the hypotheses of a query [T, B * n, C]."""
        num_hypotheses, mask = query.size(1), memory.padding_mask
        hypotheses_per_sentence(num_hypotheses, memory.pack_q.size(0))
        if mask is None:
            return None
        # The mask has an entry for each sentence, even if pack_q has only one for all sentences.
        n = hypotheses_per_sentence(num_hypotheses, mask.size(0))
        return mask if n == 1 else mask.repeat_interleave(n, dim=0)

    def _project_x(self, x: Tensor, layers: Optional[Sequence[nn.Module]] = None) -> List[Tensor]:
        """Apply ``layers`` to X (default: all projections), and split each result into heads [B, H, T, K].

        If ``untie_kv`` is False, the last two results, keys and values, are the same tensor.
        """
        fused = None
        if layers is None:
            layers, fused = self.input_projections(), self.fused_x_proj
        if fused is not None and fused.replaces(layers):
            projected = fused(x).unflatten(-1, (len(layers), self.num_heads, -1))
            heads = list(projected.permute(2, 1, 3, 0, 4).unbind(0))  # [T, B, N, H, K] -> N x [B, H, T, K]
        else:
            heads = [split_heads(layer(x), self.num_heads) for layer in layers]
        return heads if self.untie_kv else [*heads, heads[-1]]


def causal_arguments(options: DecoderOptions, builders: Builders) -> Dict[str, Any]:
    """Return keyword arguments for :class:`LunaCausalAttention`: these options and submodule builders."""
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
        "pack_activation": options.pack_activation,
        "backend": options.backend,
        "builders": builders,
    }
