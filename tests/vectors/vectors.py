"""Our own numeric vectors: what they hold and how outputs are computed from the inputs in the file."""

from argparse import Namespace
from pathlib import Path

import torch
from tiny_luna import Task

from luna_fairseq.models.luna import LunaModel
from luna_fairseq.ops.attention import naive_attention
from luna_fairseq.ops.causal_luna import naive_causal_luna, pack_weights

PATH = Path(__file__).with_name("luna_vectors.pt")
MODELS = {
    "tied": {},
    "untied pre-norm elu": {
        "untie_luna_kv": True,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "pack_activation": "elu",
    },
}
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


def softmax_attention(inputs):
    """{output, weights} of pack or unpack attention, from q, k, v and perhaps key_padding_mask."""
    output, weights = naive_attention(**inputs)
    return {"output": output, "weights": weights}


def causal_attention(inputs, activation):
    """{pack_weights, output, unpack_weights} from q, k, v, pack_q, pack_k and perhaps masks."""
    inputs = dict(inputs)
    pack = pack_weights(inputs.pop("pack_q"), inputs.pop("pack_k"), activation)
    output, unpack = naive_causal_luna(pack_weights=pack, **inputs)
    return {"pack_weights": pack, "output": output, "unpack_weights": unpack}


def build_model(options, dtype):
    """The model, with weights still to be loaded."""
    return LunaModel.build_model(Namespace(**options), Task(11, 13)).to(dtype).eval()


def flatten(model):
    """All parameters as one vector, and their names and shapes in order."""
    parameters = dict(model.named_parameters())
    shapes = {name: list(p.shape) for name, p in parameters.items()}
    return torch.cat([p.detach().flatten() for p in parameters.values()]), shapes


def load_flat(model, vector, shapes):
    """Fill the parameters of ``model`` from what :func:`flatten` gave; names and shapes must be the same."""
    parameters = dict(model.named_parameters())
    assert {name: list(p.shape) for name, p in parameters.items()} == shapes
    with torch.no_grad():
        for name, part in zip(shapes, vector.split([parameters[name].numel() for name in shapes])):
            parameters[name].copy_(part.view(shapes[name]))


def run_model(model, inputs):
    """{logits, attention, encoder_out, packed_out} for source and target tokens."""
    with torch.no_grad():
        out = model.encoder(inputs["source"])
        logits, extra = model.decoder(inputs["target"], out)
    return {
        "logits": logits,
        "attention": extra["attn"][0],
        "encoder_out": out["encoder_out"][0],
        "packed_out": out["packed_out"][0],
    }
