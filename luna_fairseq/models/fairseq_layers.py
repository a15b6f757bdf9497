"""Adapters between ``luna_fairseq.modules`` and fairseq.

The adapters convert fairseq's options, build fairseq's dropout, layer norm and positions, and apply
torch.compile, activation checkpointing and sharding to layers. torch.jit and torch.export raise InputError.
"""

from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq import utils
from fairseq.distributed import fsdp_wrap
from fairseq.modules import FairseqDropout, LayerDropModuleList, LayerNorm, SinusoidalPositionalEmbedding
from fairseq.modules.checkpoint_activations import CheckpointFunction
from fairseq.modules.quant_noise import quant_noise
from luna_fairseq.engine.versions import is_at_least
from luna_fairseq.errors import InputError
from luna_fairseq.modules.builders import Builders
from luna_fairseq.modules.luna_layer import CausalLayer
from luna_fairseq.modules.memory import call_with_tensors
from luna_fairseq.modules.options import SINUSOIDAL, StackOptions, options_from
from luna_fairseq.modules.positions import build_positions as build_torch_positions
from luna_fairseq.modules.positions import sinusoids
from luna_fairseq.ops.attention import is_recording_graph
from luna_fairseq.ops.dropout import dropout

# fairseq's incremental decoding state.
IncrementalState = Dict[str, Dict[str, Any]]
# Methods of a layer that run in training. Only decoder layers have both.
METHODS = ("forward", "read")
REASON = (
    "Luna cannot be traced or scripted by torch.jit, or exported by torch.export: the graph would be "
    "correct only for the lengths of its example batch. Use luna-export-onnx, which writes a graph for "
    "every length"
)


def refuse_tracing() -> None:
    """Raise InputError if called while torch.jit.trace or torch.export records a model."""
    if is_recording_graph("is_exporting"):
        raise InputError(REASON)


class NoTorchScript(nn.Module):
    """Base class of modules that raise InputError when they are compiled with torch.jit.script."""

    def __prepare_scriptable__(self) -> nn.Module:
        """Raise InputError. torch.jit.script calls this on every module."""
        raise InputError(REASON)


def get_option(cfg: Any, name: str) -> Any:
    """Return an option of fairseq's nested TransformerConfig by its flat name, such as "encoder_layers"."""
    for group in ("encoder", "decoder", "quant_noise"):
        if name.startswith(f"{group}_"):
            return getattr(getattr(cfg, group), name[len(group) + 1 :])
    return getattr(cfg, name)


def read_options(options_class: Any, cfg: Any, **given: Any) -> Any:
    """Convert fairseq's nested TransformerConfig to an instance of ``options_class``.

    The class is EncoderOptions or DecoderOptions. ``given`` holds options that the configuration lacks.
    """
    activation = activation_function(cfg.activation_fn)
    return options_from(options_class, partial(get_option, cfg), activation_fn=activation, **given)


def fairseq_builders(cfg: Any, layer_drop: float) -> Builders:
    """Return the functions that build an encoder's or a decoder's modules from fairseq's classes.

    Dropout modules have names, so that --retain-dropout-modules can select them. The layer norm uses apex's
    fused kernel if apex is installed, and linear layers have quantization noise if --quant-noise-pq is set.
    Layers are compiled, checkpointed or sharded as the options request. ``layer_drop`` is the probability of
    skipping a layer (LayerDrop).
    """

    def build_layers(layers: Iterable[nn.Module]) -> nn.ModuleList:
        wrapped = map(partial(wrap_layer, cfg=cfg), layers)  # lazily, before the next layer is built
        if layer_drop > 0.0:
            return LayerDropModuleList(p=layer_drop, modules=wrapped)
        return nn.ModuleList(wrapped)

    return Builders(
        dropout=lambda probability, owner: Dropout(probability, module_name=owner),
        norm=partial(LayerNorm, export=cfg.export),
        linear=partial(quant_noise, p=cfg.quant_noise.pq, block_size=cfg.quant_noise.pq_block_size),
        layers=build_layers,
        positions=build_positions,
        packed_positions=SinusoidalPositionalEmbedding.get_embedding,
    )


class Dropout(FairseqDropout):
    """fairseq's dropout module, with masks drawn by :func:`luna_fairseq.ops.dropout.dropout`."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        return dropout(x, self.p) if self.p > 0 and (self.training or self.apply_during_inference) else x


def replace_dropout(model: nn.Module) -> None:
    """Replace fairseq's dropout modules in ``model`` with :class:`Dropout`."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is FairseqDropout:
                setattr(parent, name, Dropout(child.p, child.module_name))


def build_positions(options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
    """Build the position embedding that the options select. Return None if they select no positions."""
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
            self._compute_table(rows)

    def _compute_table(self, rows: int) -> None:
        like = getattr(self, "_float_tensor", self.weights)  # fairseq 0.12.2 moves only this buffer
        self.weights = self.get_embedding(rows, self.embedding_dim, self.padding_idx).to(like)

    # The table is not in checkpoints. to_empty() leaves it without values, and bfloat16() rounds it.
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        super()._apply(*args, **kwargs)
        self._compute_table(self.weights.size(0))
        return self

    def forward(self, positions: Tensor, end: int) -> Tensor:
        """Return embeddings [B, T, C] of width C for the ``positions`` [B, T] of B sequences of T tokens.

        The first token has the position ``padding_idx + 1``. No position exceeds ``end + padding_idx``.
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
    if cfg.checkpoint_activations:
        layer = checkpoint_methods(layer, cfg.offload_activations)
    shard = shard_methods if isinstance(layer, CausalLayer) else fsdp_wrap
    return shard(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def compile_in_training(layer: nn.Module) -> nn.Module:
    """Compile the methods ``forward`` and ``read`` of a layer with torch.compile, and return the layer.

    In evaluation mode, the layer runs uncompiled, because the sequence length changes at every decoding step.
    Layers of the same class share the compiled code. Raises InputError for torch before 2.5, which would
    compile each layer separately, and stop after a few.
    """
    if not is_at_least("torch", 2, 5):
        raise InputError(
            f"--torch-compile needs torch 2.5 or newer, this is {torch.__version__}: remove the option"
        )
    for name in METHODS:
        if hasattr(layer, name):
            setattr(layer, name, partial(_call_compiled, layer, name))
    return layer


def _call_compiled(layer: nn.Module, name: str, *inputs: Any, **kwargs: Any) -> Any:
    """Call a method of a layer. In training mode, call the compiled version of the method."""
    if not layer.training:
        return getattr(type(layer), name)(layer, *inputs, **kwargs)
    # Compiled code depends on the memory layout, and the input of the first layer is a transposed view.
    inputs = tuple(x.contiguous() if isinstance(x, Tensor) else x for x in inputs[:1]) + inputs[1:]
    layer_class: Any = type(layer)
    return _compiled(layer_class, name)(layer, *inputs, **kwargs)


@lru_cache(maxsize=None)
def _compiled(layer_class: Any, name: str) -> Callable[..., Any]:
    """Return the compiled version of a method, which is used for all layers of a class."""
    return torch.compile(getattr(layer_class, name))


def checkpoint_methods(layer: nn.Module, offload: bool = False) -> nn.Module:
    """Apply activation checkpointing to ``forward`` and ``read`` of a layer, and return the layer.

    With ``offload``, the stored inputs are kept on the CPU.
    """
    # fairseq's wrapper handles only ``forward``, passes no gradients to tensors within tuples, trains no
    # layer whose inputs are frozen, and recomputes without the autocast of the forward pass.
    for name in METHODS:
        if hasattr(layer, name):
            setattr(layer, name, partial(_checkpoint, getattr(layer, name), offload))
    return layer


def _checkpoint(function: Callable[..., Any], offload: bool, *inputs: Any, **options: Any) -> Any:
    def call_layer(*values: Any) -> Any:
        return function(*values[:count], **dict(zip(names, values[count:])))

    def run(call: Callable[..., Any], *tensors: Tensor) -> Any:
        autocast = remember_autocast(tensors[0].device)
        return CheckpointFunction.apply(autocast(call), {"offload": offload}, [], *tensors)

    count, names = len(inputs), list(options)  # not the tensors themselves, which may be offloaded
    return call_with_tensors(run, call_layer, *inputs, *options.values())


def remember_autocast(device: torch.device) -> torch.autocast:
    """Return a context that restores the present state of autocast, for use in the backward pass."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4 or newer
        enabled = torch.is_autocast_enabled(device.type)
    else:
        enabled = torch.is_autocast_cpu_enabled() if device.type == "cpu" else torch.is_autocast_enabled()
    # Weights that checkpointing casts without gradients must not be cached for the recomputation.
    return torch.autocast(device.type, enabled=enabled, cache_enabled=False)


def shard_methods(layer: nn.Module, min_num_params: int) -> nn.Module:
    """Wrap a decoder layer with FSDP to shard its parameters, if fairseq trains with FSDP.

    Layers with fewer than ``min_num_params`` parameters are not wrapped. FSDP gathers the parameters only for
    calls of ``forward``, so ``read`` is called through ``forward`` too.
    """
    wrapped: Any = fsdp_wrap(layer, min_num_params=min_num_params)
    if wrapped is not layer:
        methods = {name: getattr(layer, name) for name in METHODS}
        layer.forward = partial(_call_method, methods)
        wrapped.read = partial(wrapped, method="read")
    return wrapped


def _call_method(methods: Dict[str, Callable[..., Any]], *inputs: Any, method: str = "forward") -> Any:
    return methods[method](*inputs)


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
    """Return fairseq's activation function ``name``, such as ``relu``. For ``gelu``, return :func:`gelu`."""
    return gelu if name == "gelu" else utils.get_activation_fn(name)
