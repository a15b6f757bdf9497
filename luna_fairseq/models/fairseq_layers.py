"""Adapters between the PyTorch modules of ``luna_fairseq.modules`` and fairseq.

They translate fairseq's options, replace torch's layers with fairseq's, and apply torch.compile, activation
checkpointing and sharding to encoder and decoder layers.
"""

from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, TypeVar

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
from luna_fairseq.modules.luna_decoder_layer import CausalLayer, LunaDecoderLayer
from luna_fairseq.modules.options import SINUSOIDAL, StackOptions, options_from
from luna_fairseq.modules.positions import build_positions as build_torch_positions
from luna_fairseq.modules.positions import sinusoids

Module = TypeVar("Module", bound=nn.Module)
# fairseq's incremental decoding state.
IncrementalState = Dict[str, Dict[str, Any]]


def get_option(cfg: Any, name: str) -> Any:
    """Return an option of fairseq's nested TransformerConfig by its name on the command line."""
    for group in ("encoder", "decoder", "quant_noise"):
        if name.startswith(f"{group}_"):
            return getattr(getattr(cfg, group), name[len(group) + 1 :])
    return getattr(cfg, name)


def read_options(options_class: Any, cfg: Any, **given: Any) -> Any:
    """Translate fairseq's nested TransformerConfig into the options of an encoder or a decoder.

    ``given`` contains the options that the configuration does not determine.
    """
    activation = activation_function(cfg.activation_fn)
    return options_from(options_class, partial(get_option, cfg), activation_fn=activation, **given)


def fairseq_builders(cfg: Any, layer_drop: float) -> Builders:
    """Return functions that build fairseq's modules.

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
    """Build the position embedding: fairseq's table if the positions are sinusoidal."""
    if options.positions == SINUSOIDAL:
        return FairseqPositions(options.max_positions, options.embed_dim, padding_idx)
    return build_torch_positions(options, padding_idx)


class FairseqPositions(SinusoidalPositionalEmbedding):
    """fairseq's sinusoidal position embedding, for sequences of any length.

    Embeddings are looked up in a table. Positions beyond the end of the table are computed in each call.

    Args:
        max_positions: initial maximum sequence length of the table.
        embed_dim: model width.
        padding_idx: position number used for padding. Its embedding is zero.

    Example:
        >>> positions = FairseqPositions(max_positions=10, embed_dim=4, padding_idx=1)
        >>> positions(torch.tensor([[2, 3, 1]]), end=3).shape  # two tokens and padding
        torch.Size([1, 3, 4])
    """

    def __init__(self, max_positions: int, embed_dim: int, padding_idx: int):
        super().__init__(embed_dim, padding_idx, init_size=max_positions + padding_idx + 1)

    weights: Tensor  # torch.jit requires buffers to be annotated

    def extend(self, end: int) -> None:
        """Extend the embedding table to longer sequences.

        Args:
            end: new maximum sequence length. Nothing happens if the table is long enough.
        """
        rows = end + self.padding_idx + 1
        if rows > self.weights.size(0):
            table = self.get_embedding(rows, self.embedding_dim, self.padding_idx)
            self.weights = table.to(self.weights)

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Look up position embeddings.

        Args:
            positions: position numbers [batch size, length]. The first token is numbered ``padding_idx + 1``.
            end: maximum sequence length. No position number exceeds ``end + padding_idx``.

        Returns:
            Embeddings [batch size, length, width].
        """
        like = getattr(self, "_float_tensor", self.weights)  # fairseq 0.12.2 moves only this buffer
        if end + self.padding_idx + 1 > self.weights.size(0):
            is_token = positions.ne(self.padding_idx).unsqueeze(-1)
            return sinusoids(positions, self.embedding_dim, torch.float64).to(like) * is_token
        self.weights = self.weights.to(like)
        return self.weights.index_select(0, positions.reshape(-1)).view(*positions.shape, -1).detach()


def use_fairseq_layers(
    module: Module, name: str, q_noise: float = 0.0, qn_block_size: int = 8, export: bool = False
) -> Module:
    """Replace a module's dropout and layer norm children with fairseq's, and add quantization noise.

    fairseq's dropout can be named for --retain-dropout-modules. Its layer norm uses apex's fused kernel if
    apex is installed. Quantization noise is added to linear layers.

    Args:
        module: module whose children are replaced in place. Parameters keep their names.
        name: dropout name for --retain-dropout-modules.
        q_noise: amount of quantization noise (default: 0).
        qn_block_size: block size of quantization noise (default: 8).
        export: use torch's layer norm in place of apex's kernel (default: False).

    Returns:
        The module itself.
    """
    use_fairseq_dropout_and_norm(module, name, export)
    for child in module.children():
        if isinstance(child, nn.Linear):
            quant_noise(child, q_noise, qn_block_size)
    return module


def wrap_luna_layer(layer: Any, name: str, cfg: Any) -> nn.Module:
    """Replace parts of a Luna layer with fairseq's, and wrap the layer as requested by the options.

    :func:`wrap_layer` lists the wrappers.

    Args:
        layer: :class:`luna_fairseq.modules.LunaEncoderLayer` or :class:`LunaDecoderLayer`, modified in place.
        name: name of the layer's dropout modules for --retain-dropout-modules.
        cfg: fairseq's TransformerConfig, extended with Luna's options.

    Returns:
        The wrapped layer.
    """
    noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
    causal = isinstance(layer, CausalLayer)
    use_fairseq_layers(layer.self_attn, "LunaCausalAttention" if causal else "LunaAttention", **noise)
    if isinstance(layer, LunaDecoderLayer):
        use_fairseq_layers(layer.encoder_attn, "LunaAttention", **noise)
    return wrap_layer(use_fairseq_layers(layer, name, **noise, export=cfg.export), cfg)


def use_fairseq_dropout_and_norm(module: nn.Module, name: str, export: bool) -> None:
    """Replace a module's dropout and layer norm children with fairseq's.

    Args:
        module: module whose children are replaced in place.
        name: dropout name for --retain-dropout-modules.
        export: use torch's layer norm in place of apex's kernel.
    """
    for part, child in list(module.named_children()):
        if isinstance(child, nn.Dropout):
            setattr(module, part, FairseqDropout(child.p, module_name=name))
        elif isinstance(child, nn.LayerNorm):
            options = {"eps": child.eps, "elementwise_affine": child.elementwise_affine}
            setattr(module, part, LayerNorm(child.normalized_shape, **options, export=export))


def use_fairseq_stack(stack: nn.Module, name: str, cfg: Any) -> None:
    """Replace the dropout and layer norm of an encoder or decoder with fairseq's, outside its layers.

    :func:`wrap_luna_layer` does the same inside each layer. Quantization noise is added to the linear layer
    after the embedding, if there is one.

    Args:
        stack: encoder or decoder, modified in place.
        name: dropout name for --retain-dropout-modules.
        cfg: fairseq's TransformerConfig.
    """
    use_fairseq_dropout_and_norm(stack, name, cfg.export)


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Apply torch.compile, activation checkpointing and FSDP to a layer, as requested by the options.

    Args:
        layer: encoder or decoder layer.
        cfg: fairseq's TransformerConfig, extended with Luna's options.

    Returns:
        The wrapped layer; ``layer`` itself if none of these options is set.

    Raises:
        InputError: --torch-compile is combined with activation checkpointing, or torch is older than 2.5.
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
    """List of layers that are applied several times with shared parameters.

    Args:
        layers: layers, applied in order.
        times: number of passes over the list per iteration.

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
    """Compute the exact GELU, in float32 if the input has half precision.

    Args:
        x: tensor of any shape.

    Returns:
        Tensor with the same shape and dtype as the input.
    """
    return F.gelu(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation function by name.

    Args:
        name: name known to fairseq, such as ``relu``. For ``gelu``, this module's :func:`gelu` is returned.

    Returns:
        Function that maps a tensor to a tensor.
    """
    return gelu if name == "gelu" else utils.get_activation_fn(name)
