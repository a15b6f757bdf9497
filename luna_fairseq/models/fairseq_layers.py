"""Adapters between ``luna_fairseq.modules`` and fairseq.

They convert fairseq's options, build fairseq's dropout, layer norm and positions, and apply torch.compile,
activation checkpointing and sharding to layers.
"""

from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq import utils
from fairseq.distributed import fsdp_wrap
from fairseq.modules import FairseqDropout, LayerDropModuleList, LayerNorm, SinusoidalPositionalEmbedding
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from luna_fairseq.errors import InputError
from luna_fairseq.models.compiled_layer import compile_in_training
from luna_fairseq.models.wrapped_decoder_layer import checkpoint_methods, shard_methods
from luna_fairseq.modules.builders import Builders
from luna_fairseq.modules.luna_decoder_layer import CausalLayer
from luna_fairseq.modules.options import SINUSOIDAL, StackOptions, options_from
from luna_fairseq.modules.positions import build_positions as build_torch_positions
from luna_fairseq.modules.positions import sinusoids

# fairseq's incremental decoding state.
IncrementalState = Dict[str, Dict[str, Any]]


def get_option(cfg: Any, name: str) -> Any:
    """Return an option of fairseq's nested TransformerConfig by its flat name, such as "encoder_layers"."""
    for group in ("encoder", "decoder", "quant_noise"):
        if name.startswith(f"{group}_"):
            return getattr(getattr(cfg, group), name[len(group) + 1 :])
    return getattr(cfg, name)


def read_options(options_class: Any, cfg: Any, **given: Any) -> Any:
    """Convert fairseq's nested TransformerConfig to the options of an encoder or a decoder.

    options_class: class of the result. given: options that the configuration does not determine.
    """
    activation = activation_function(cfg.activation_fn)
    return options_from(options_class, partial(get_option, cfg), activation_fn=activation, **given)


def fairseq_builders(cfg: Any, layer_drop: float) -> Builders:
    """Return functions with which an encoder or a decoder builds fairseq's modules.

    fairseq's dropout has a name for --retain-dropout-modules, its layer norm uses apex's fused kernel if apex
    is installed, and linear layers have quantization noise if --quant-noise-pq is set. Layers are compiled,
    checkpointed or sharded as the options request.
    """

    def build_layers(layers: Iterable[nn.Module]) -> nn.ModuleList:
        wrapped = (wrap_layer(layer, cfg) for layer in layers)
        if layer_drop > 0.0:
            return LayerDropModuleList(p=layer_drop, modules=wrapped)
        return nn.ModuleList(wrapped)

    return Builders(
        dropout=lambda probability, owner: FairseqDropout(probability, module_name=owner),
        norm=partial(LayerNorm, export=cfg.export),
        linear=partial(quant_noise, p=cfg.quant_noise.pq, block_size=cfg.quant_noise.pq_block_size),
        layers=build_layers,
        positions=build_positions,
        packed_positions=SinusoidalPositionalEmbedding.get_embedding,
    )


def build_positions(options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
    """Build the position embedding that the options request, or None. Sinusoidal positions are fairseq's."""
    if options.positions == SINUSOIDAL:
        return FairseqPositions(options.max_positions, options.embed_dim, padding_idx)
    return build_torch_positions(options, padding_idx)


class FairseqPositions(SinusoidalPositionalEmbedding):
    """fairseq's sinusoidal position embedding, for sequences of any length.

    Embeddings are looked up in a table of initially ``max_positions`` entries. Positions beyond its end are
    computed in each call. The embedding of the position ``padding_idx`` is zero.

    Example:
        >>> positions = FairseqPositions(max_positions=10, embed_dim=4, padding_idx=1)
        >>> positions(torch.tensor([[2, 3, 1]]), end=3).shape  # two tokens and padding
        torch.Size([1, 3, 4])
    """

    def __init__(self, max_positions: int, embed_dim: int, padding_idx: int):
        super().__init__(embed_dim, padding_idx, init_size=max_positions + padding_idx + 1)

    weights: Tensor  # torch.jit requires buffers to be annotated

    def extend(self, end: int) -> None:
        """Extend the table of position embeddings, if it is too short for sequences of ``end`` tokens."""
        rows = end + self.padding_idx + 1
        if rows > self.weights.size(0):
            table = self.get_embedding(rows, self.embedding_dim, self.padding_idx)
            self.weights = table.to(self.weights)

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return the embeddings [B, T, C] of positions [B, T]. The first position is ``padding_idx + 1``.

        ``end`` is the maximum sequence length, so that no position exceeds ``end + padding_idx``.
        """
        like = getattr(self, "_float_tensor", self.weights)  # fairseq 0.12.2 moves only this buffer
        if end + self.padding_idx + 1 > self.weights.size(0):
            is_token = positions.ne(self.padding_idx).unsqueeze(-1)
            return sinusoids(positions, self.embedding_dim, torch.float64).to(like) * is_token
        self.weights = self.weights.to(like)
        return self.weights.index_select(0, positions.reshape(-1)).view(*positions.shape, -1).detach()


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Apply torch.compile, activation checkpointing and FSDP to a layer, as requested by the options.

    Raises InputError if --torch-compile is combined with activation checkpointing, or torch is too old.
    """
    if cfg.torch_compile:
        if cfg.checkpoint_activations:
            raise InputError(
                "--torch-compile and --checkpoint-activations exclude each other: remove one of them"
            )
        layer = compile_in_training(layer)
    is_luna_decoder = isinstance(layer, CausalLayer)
    if cfg.checkpoint_activations:
        wrap = checkpoint_methods if is_luna_decoder else checkpoint_wrapper
        layer = wrap(layer, cfg.offload_activations)
    shard = shard_methods if is_luna_decoder else fsdp_wrap
    return shard(layer, 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class RepeatedLayers(nn.ModuleList):
    """List of layers that are applied ``times`` times with shared parameters.

    Example:
        >>> len(list(RepeatedLayers(nn.ModuleList([nn.Linear(2, 2)]), times=3)))
        3
    """

    def __init__(self, layers: nn.ModuleList, times: int):
        super().__init__(layers)
        self.times = times

    def __iter__(self) -> Iterator[nn.Module]:
        for _ in range(self.times):
            yield from super().__iter__()


def gelu(x: Tensor) -> Tensor:
    """Compute GELU in float32 even for half-precision inputs."""
    return F.gelu(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function of fairseq with a name such as ``relu``; GELU is :func:`gelu`."""
    return gelu if name == "gelu" else utils.get_activation_fn(name)
