"""Stored outputs of two tiny models. ``python tests/vectors/vectors.py`` writes the file again.

Write the file again only if the mathematics has changed on purpose, and state the reason in the commit.
"""

import os
import sys
from argparse import Namespace
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = map(str, Path(__file__).resolve().parents[1:3])  # the checkout, not an installed copy

import torch
from tiny_luna import UNTIED_PRE_NORM, Task

from luna_fairseq.models.luna import LunaModel

PATH = Path(__file__).with_name("luna_vectors.pt")
MODELS = {"tied": {}, "untied pre-norm elu": {**UNTIED_PRE_NORM, "pack_activation": "elu"}}
SIZES = {
    "encoder_embed_dim": 6,
    "encoder_ffn_embed_dim": 10,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_projected_attention_heads": 2,
    "decoder_ffn_embed_dim": 7,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "projection_length": 5,
    "share_decoder_input_output_embed": True,
    "dropout": 0.0,
    "max_source_positions": 20,
    "max_target_positions": 20,
}
INPUTS = {
    "source": torch.tensor([[4, 9, 5, 10, 8, 6, 2], [1, 1, 1, 1, 7, 4, 2], [1, 1, 5, 5, 3, 9, 2]]),
    "target": torch.tensor([[2, 5, 12, 7, 4], [2, 11, 6, 1, 1], [2, 8, 1, 1, 1]]),
}


def build_model(options, dtype):
    """Build a model whose weights are still to be loaded."""
    return LunaModel.build_model(Namespace(**options), Task(11, 13)).to(dtype).eval()


def run_model(model, inputs):
    """Return logits, attention, encoder_out and packed_out for source and target tokens."""
    with torch.no_grad():
        out = model.encoder(inputs["source"])
        logits, extra = model.decoder(inputs["target"], out)
    encoder_out, packed_out = out["encoder_out"][0], out["packed_out"][0]
    return {
        "logits": logits,
        "attention": extra["attn"][0],
        "encoder_out": encoder_out,
        "packed_out": packed_out,
    }


def case(variant):
    options = {**SIZES, **variant}
    model = build_model(options, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    outputs = run_model(model.double(), INPUTS)
    return {"options": options, "weights": weights, "inputs": INPUTS, "outputs": outputs}


if __name__ == "__main__":
    torch.manual_seed(20210603)
    vectors = {name: case(variant) for name, variant in MODELS.items()}
    temporary = PATH.with_suffix(".pt.tmp")
    torch.save(vectors, temporary)
    os.replace(temporary, PATH)
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")
