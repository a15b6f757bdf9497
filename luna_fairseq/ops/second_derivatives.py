"""Error for second derivatives of operations whose backward pass is written by hand."""

import torch


def refuse_second_derivatives(operation: str, remedy: str) -> None:
    """Raise NotImplementedError if autograd records the backward pass (``create_graph=True``).

    Call this first in the ``backward`` of an autograd function. torch's ``once_differentiable`` raises only
    on some ways to a second derivative, and returns a wrong one on the others.
    """
    if torch.is_grad_enabled():
        raise NotImplementedError(f"{operation} has no second derivatives (create_graph=True). {remedy}.")
