"""What fits the modules to fairseq: its layers in the place of torch's, its wrappers, its activation
functions, its options."""

from typing import Any, Callable, Dict, Iterator, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq import utils
from fairseq.distributed import fsdp_wrap
from fairseq.modules import FairseqDropout, LayerNorm
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from luna_fairseq.errors import InputError
from luna_fairseq.modules.compiled_layer import compile_in_training

Module = TypeVar("Module", bound=nn.Module)


def attention_options(cfg: Any, side: Any) -> Dict[str, Any]:
    """Arguments of Luna attention for one ``side`` of ``cfg``, the encoder's or the decoder's."""
    return {
        "embed_dim": side.embed_dim,
        "num_heads": side.attention_heads,
        "num_pack_heads": side.projected_attention_heads,
        "dropout": cfg.attention_dropout,
        "untie_kv": cfg.untie_luna_kv,
    }


def use_fairseq_layers(
    module: Module, name: str, q_noise: float = 0.0, qn_block_size: int = 8, export: bool = False
) -> Module:
    """``module`` with fairseq's own in the place of torch's layers: dropout that --retain-dropout keeps
    (``name`` is what --retain-dropout-modules calls it), the norm with apex's fused kernel (not to
    ``export``), quantisation noise on linear maps."""
    for part, child in list(module.named_children()):
        if isinstance(child, nn.Dropout):
            setattr(module, part, FairseqDropout(child.p, module_name=name))
        elif isinstance(child, nn.LayerNorm):
            setattr(module, part, LayerNorm(child.normalized_shape, export=export))
        elif isinstance(child, nn.Linear):
            quant_noise(child, q_noise, qn_block_size)
    return module


def finish_layer(
    layer: nn.Module, name: str, cfg: Any, update_packed: bool, normalize_packed: bool = True
) -> nn.Module:
    """Build what follows the attentions of a Luna layer, of fairseq's parts.

    Args:
        layer: :class:`luna_fairseq.modules.luna_layer.LunaLayer` with its attentions, ``self_attn`` among
            them
        name: what --retain-dropout-modules calls it; "encoder" or "decoder" in it chooses the part of ``cfg``
        cfg: fairseq's TransformerConfig with Luna's options added to it
        update_packed: pass the packed context on as the next layer's P
        normalize_packed: in a post-norm layer, normalise that P; otherwise the caller does
    """
    side = cfg.encoder if "Encoder" in name else cfg.decoder
    layer.build_feed_forward(
        side.embed_dim,
        side.ffn_embed_dim,
        activation_function(cfg.activation_fn),
        cfg.dropout,
        cfg.activation_dropout,
        side.normalize_before,
    )
    packer = layer.self_attn if "Encoder" in name else layer.encoder_attn
    if packer is not None and packer.packs:
        layer.build_packed_layer_norm(side.embed_dim, update_packed, normalize_packed)
    noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
    return wrap_layer(use_fairseq_layers(layer, name, **noise, export=cfg.export), cfg)


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """torch.compile, activation checkpointing and FSDP around one layer; the last two as fairseq's own layers
    get them.

    Raises:
        InputError: torch.compile together with activation checkpointing, or with an old torch
    """
    if cfg.torch_compile:
        if cfg.checkpoint_activations:
            raise InputError("--torch-compile and --checkpoint-activations do not go together: leave one out")
        layer = compile_in_training(layer)
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class RepeatedLayer(nn.ModuleList):
    """One layer that is iterated over ``times`` times; it has its parameters once."""

    def __init__(self, layers: nn.ModuleList, times: int):
        super().__init__(layers)
        self.times = times

    def __iter__(self) -> Iterator[nn.Module]:
        for _ in range(self.times):
            yield from super().__iter__()


def gelu(x: Tensor) -> Tensor:
    """Exact GELU, of half precision in float32 as fairseq's; unlike fairseq's, of float64 in float64."""
    return F.gelu(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """fairseq's activation function of this name, and our :func:`gelu`."""
    return gelu if name == "gelu" else utils.get_activation_fn(name)
