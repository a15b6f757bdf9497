"""One rule for every implementation that uses the weight of a linear layer without calling the layer."""

from typing import Optional, Tuple

from torch import Tensor, nn
from torch.nn.modules import module as torch_module


def has_hooks(layer: nn.Module) -> bool:
    """Return True if a call of the layer runs hooks, or a ``forward`` that was assigned to this instance.

    Hooks are those of the layer and torch's global hooks.
    """
    own = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    of_all = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    of_all = of_all or torch_module._global_backward_hooks
    # torch 1 has no hooks before the backward pass.
    own = own or getattr(layer, "_backward_pre_hooks", None)
    of_all = of_all or getattr(torch_module, "_global_backward_pre_hooks", None)
    return bool(own or of_all or "forward" in vars(layer))


def is_plain_linear(layer: nn.Module) -> bool:
    """Return True if a call of the layer computes ``weight x + bias`` and nothing else.

    A class other than ``nn.Linear`` itself must set the class attribute ``computes_plain_linear``, which its
    subclasses do not inherit.
    """
    is_linear = type(layer) is nn.Linear or vars(type(layer)).get("computes_plain_linear", False)
    return is_linear and not has_hooks(layer)


def linear_parameters(layer: nn.Module) -> Optional[Tuple[Tensor, Tensor]]:
    """Return the weight and the bias of a plain linear layer, or None for other layers and without a bias."""
    if not is_plain_linear(layer) or layer.bias is None:
        return None
    return layer.weight, layer.bias
