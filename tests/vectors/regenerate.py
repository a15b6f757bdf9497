"""Write luna_vectors.pt anew: ``python tests/vectors/regenerate.py``.

The file pins today's numbers. Write it again only when the mathematics changes on purpose, and say why in the
commit.
"""

import os
import sys
from pathlib import Path

sys.path[:0] = map(str, Path(__file__).resolve().parents[1:3])  # the checkout, not an installed copy

import torch  # noqa: E402
from vectors import (  # noqa: E402
    MODELS,
    PATH,
    SIZES,
    build_model,
    causal_attention,
    flatten,
    run_model,
    softmax_attention,
)

B, H, T, K, L, S = 3, 2, 6, 3, 4, 5


def randn(*shape):
    """Values that are exact in float32, as float64."""
    return torch.randn(shape).double()


def masks():
    """Of the keys or context [B, S], of positions in time [B, T] (left, none, right), of rows of P [B, L]."""
    position, row = torch.arange(T)[None, :], torch.arange(L)[None, :]
    context = torch.arange(S)[None, :] >= torch.tensor([[S], [2], [0]])
    time = (position < torch.tensor([[2], [0], [0]])) | (position >= torch.tensor([[T], [T], [T - 1]]))
    return context, time, row >= torch.tensor([[L], [1], [L - 1]])


def softmax_cases():
    inputs = {"q": randn(B, H, T, K), "k": randn(B, H, S, K), "v": randn(B, H, S, K)}
    masked = {**inputs, "key_padding_mask": masks()[0]}
    cases = {"plain": inputs, "masked": masked}
    return {name: {"inputs": case, "outputs": softmax_attention(case)} for name, case in cases.items()}


def causal_cases():
    inputs = {name: randn(B, H, T, K) for name in ("q", "k", "v", "pack_k")}
    inputs["pack_q"] = randn(B, H, L, K)
    _, time, rows = masks()
    both = {"packed_padding_mask": rows, "key_padding_mask": time}
    kinds = [("softplus", "plain", {}), ("softplus", "masked", both), ("elu", "masked", both)]
    cases = {}
    for activation, kind, given in kinds:
        case = {**inputs, **given}
        outputs = causal_attention(case, activation)
        cases[f"{activation} {kind}"] = {"activation": activation, "inputs": case, "outputs": outputs}
    return cases


def model_cases():
    inputs = {
        "source": torch.tensor([[4, 9, 5, 10, 8, 6, 2], [1, 1, 1, 1, 7, 4, 2], [1, 1, 5, 5, 3, 9, 2]]),
        "target": torch.tensor([[2, 5, 12, 7, 4], [2, 11, 6, 1, 1], [2, 8, 1, 1, 1]]),
    }
    cases = {}
    for name, variant in MODELS.items():
        options = {**SIZES, **variant}
        model = build_model(options, torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        weights, shapes = flatten(model)
        outputs = run_model(model.double(), inputs)
        cases[name] = {
            "options": options,
            "weights": weights,
            "shapes": shapes,
            "inputs": inputs,
            "outputs": outputs,
        }
    return cases


def main():
    torch.manual_seed(20210603)
    vectors = {"softmax": softmax_cases(), "causal": causal_cases(), "model": model_cases()}
    temporary = PATH.with_suffix(".pt.tmp")
    torch.save(vectors, temporary)
    os.replace(temporary, PATH)
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
