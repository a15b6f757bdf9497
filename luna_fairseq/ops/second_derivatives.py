"""Error for second derivatives of operations whose backward pass is written by hand."""

import torch


def refuse_second_derivatives(operation: str, remedy: str) -> None:
    """Raise NotImplementedError if autograd records the calling backward pass (``create_graph=True``)."""
    # torch's once_differentiable raises for some second derivatives only, and lets others be wrong.
    if torch.is_grad_enabled():
        raise NotImplementedError(f"{operation} has no second derivatives (create_graph=True). {remedy}.")
