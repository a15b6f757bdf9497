"""Compare attentions and layers with recorded outputs of the authors' implementation."""

import pytest
import torch
from golden import DTYPES, assert_close, cast, load

from fairseq.models.transformer import TransformerConfig
from luna_fairseq.models.authors_checkpoint import translate_name
from luna_fairseq.models.fairseq_layers import read_options
from luna_fairseq.models.luna import nested_config
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.modules import (
    DecoderAttentions,
    DecoderOptions,
    EncoderAttentions,
    EncoderOptions,
    LunaAttention,
    LunaCausalAttention,
    LunaDecoderLayer,
    LunaEncoderLayer,
    Source,
)
from luna_fairseq.modules.luna_layer import Shared

precisions = pytest.mark.parametrize("precision", ["f32", "f64"])


def with_parameters(module, state_dict, prefix, precision):
    """Return a module with the authors' parameters in evaluation mode.

    ``prefix`` is the name of the module in a model of this project.
    """
    renamed = {translate_name(prefix + name)[len(prefix) :]: value for name, value in state_dict.items()}
    module.load_state_dict(renamed)
    return module.to(DTYPES[precision]).eval()


def with_grad(inputs, *names):
    return {name: inputs[name].clone().requires_grad_() for name in names if name in inputs}


def check_gradients(module, leaves, golden, precision, prefix):
    for name, expected in golden["grads"].items():
        kind, name = name.split("/", 1)
        if kind == "input":
            actual = leaves[name].grad
        else:
            actual = module.get_parameter(translate_name(prefix + name)[len(prefix) :]).grad
        # Gradients are sums over all positions, so errors are compared with the largest value of the tensor.
        scale = expected.abs().max().clamp(min=1)
        assert_close(actual / scale, expected / scale, precision, f"gradient of {name}")


@precisions
@pytest.mark.parametrize("file", ["mha_tied_self", "mha_untied_cross"])
@pytest.mark.parametrize("case", ["nopad", "pad", "pad_pmask"])
def test_luna_attention(file, case, precision):
    golden = load(file)
    config, prefix = golden["config"], "encoder.layers.0.self_attn."
    attention = LunaAttention(
        config["embed_dim"], config["num_heads"], config["num_pheads"], untie_kv=not config["tie_kv"]
    )
    module = with_parameters(attention, golden["state_dict"], prefix, precision)
    vectors = golden["cases"][case]
    inputs = cast(vectors["inputs"], DTYPES[precision])
    leaves = with_grad(inputs, "query", "pquery", "context")
    context = leaves.get("context", leaves["query"])
    masks = (inputs.get("context_padding_mask"), inputs.get("pcontext_padding_mask"))
    output, packed, _ = module(leaves["query"], leaves["pquery"], context, *masks)
    expected = vectors[precision]
    assert_close(output, expected["outputs"]["attn"], precision, "output")
    assert_close(packed, expected["outputs"]["pcontext"], precision, "packed context")
    loss = (output * inputs["loss_weight_attn"]).sum() + (packed * inputs["loss_weight_pcontext"]).sum()
    loss.backward()
    check_gradients(module, leaves, expected, precision, prefix)

    with torch.no_grad():  # the same output; our weights are theirs over P times the pack weights
        again, _, weights = module(leaves["query"], leaves["pquery"], context, *masks, need_weights=True)
        inputs = leaves["pquery"], context, Source(*masks)
        _, pack_weights = module.attend_to_context(*inputs, need_weights=True)
    assert_close(again, expected["outputs"]["attn"], precision, "output with weights")
    over_packed = expected["outputs"]["head_weights"]
    assert_close(weights, over_packed @ pack_weights.mean(dim=1), precision, "weights over the context")


CAUSAL = "decoder.layers.0.self_attn."


def causal_case(case, precision, backend="auto"):
    """Return causal attention with the authors' parameters, and the inputs and outputs of a case."""
    golden = load("causal_tied")
    sizes = golden["config"]["embed_dim"], golden["config"]["num_heads"]
    attention = LunaCausalAttention(*sizes, pack_activation=case.split("_")[0], backend=backend)
    module = with_parameters(attention, golden["state_dict"], CAUSAL, precision)
    vectors = golden["cases"][case]
    return module, cast(vectors["inputs"], DTYPES[precision]), vectors[precision]


@precisions
@pytest.mark.parametrize("case", ["softplus", "softplus_pmask", "softplus_keypad", "elu", "elu_pmask"])
@pytest.mark.parametrize("backend", ["naive", "chunk"])
def test_causal_attention(case, backend, precision):
    module, inputs, expected = causal_case(case, precision, backend)
    leaves = with_grad(inputs, "query", "pquery")
    packed_mask, key_mask = inputs.get("pkey_padding_mask"), inputs.get("key_padding_mask")
    output, _ = module(leaves["query"], module.read(leaves["pquery"], packed_mask), key_padding_mask=key_mask)
    if key_mask is not None:
        # The authors' code ignores this mask. Ours masks padding, so both agree before the first padding.
        seen = key_mask.cumsum(dim=1).eq(0).t().unsqueeze(-1)
        assert_close(output * seen, expected["outputs"]["attn_parallel"] * seen, precision, "before padding")
        return
    assert_close(output, expected["outputs"]["attn_parallel"], precision, "output")
    (output * inputs["loss_weight_attn"]).sum().backward()
    check_gradients(module, leaves, expected, precision, CAUSAL)

    with torch.no_grad():
        pattern, weights = module.weights(leaves["query"], module.read(leaves["pquery"], packed_mask))
    assert_close(pattern, expected["outputs"]["pattn"], precision, "pack weights")
    if "head_weights" in expected["outputs"]:
        assert_close(
            weights.transpose(0, 1), expected["outputs"]["head_weights"], precision, "unpack weights"
        )


@precisions
@pytest.mark.parametrize("case", ["softplus", "softplus_pmask", "elu", "elu_pmask"])
def test_causal_attention_step_by_step_with_reorder(case, precision):
    module, inputs, expected = causal_case(case, precision)
    expected = expected["outputs"]
    query, mask = inputs["query"], inputs.get("pkey_padding_mask")
    memory, state, outputs = module.read(inputs["pquery"], mask), None, []
    for t in range(query.size(0)):
        output, state = module(query[t : t + 1], memory, state, keep_state=True)
        outputs.append(output)
    assert_close(torch.cat(outputs), expected["attn_incremental"], precision, "step by step")
    assert_close(state.key_sum, expected["incremental_state"]["prev_key_accum_mat"], precision, "key sum")
    value_sum = expected["incremental_state"]["prev_value_accum_mat"]
    if value_sum.shape != state.key_sum.shape:
        value_sum = value_sum.transpose(-2, -1)
    assert_close(
        state.key_sum, value_sum, precision, "value sum, which tied attention has once with the key sum"
    )
    assert state.steps.tolist() == [query.size(0)] * query.size(1)


def layer_config(config):
    side = config["kind"]
    flat = LunaConfig(
        encoder_embed_dim=config["embed_dim"],
        encoder_ffn_embed_dim=config["ffn_dim"],
        encoder_attention_heads=config["num_heads"],
        decoder_attention_heads=config["num_heads"],
        encoder_normalize_before=bool(config["normalize_before"]),
        decoder_normalize_before=bool(config["normalize_before"]),
        activation_fn=config["activation_fn"],
        untie_luna_kv=not config["tie_kv"],
    )
    setattr(flat, f"{side}_projected_attention_heads", config["num_pheads"])
    return nested_config(flat)


def build_layer(side, cfg):
    if side == "encoder":
        options = read_options(EncoderOptions, cfg)
        return LunaEncoderLayer(options, EncoderAttentions(options).build_attention())
    options = read_options(DecoderOptions, cfg)
    attentions = DecoderAttentions(options)
    causal = attentions.build_causal_attention()
    return LunaDecoderLayer(options, causal, attentions.build_cross_attention(True), True)


@precisions
@pytest.mark.parametrize("variant", ["tied", "untied"])
@pytest.mark.parametrize("case", ["nomask", "padmask", "masks"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layer(side, variant, case, precision):
    golden = load(f"{side}_layer_postnorm")["variants"][variant]
    prefix = f"{side}.layers.0."
    built = build_layer(side, layer_config(golden["config"]))
    layer = with_parameters(built, golden["state_dict"], prefix, precision)
    vectors = golden["cases"][case]
    inputs = cast(vectors["inputs"], DTYPES[precision])
    leaves = with_grad(inputs, *[name for name, value in inputs.items() if value.is_floating_point()])
    masks = {}
    for name, value in inputs.items():
        if value.dtype == torch.bool:
            masks["packed_padding_mask" if "proj" in name or name.startswith("p") else "padding_mask"] = value
    source = Source(**masks)
    if side == "encoder":
        x, packed, _ = layer(leaves["x"], leaves["px"], source)
    else:
        packed, memory = layer.read(leaves["px"], leaves["encoder_out"], source)
        x, *_ = layer(leaves["x"], memory, shared=Shared(source))
    expected = vectors[precision]
    assert_close(x, expected["outputs"]["x"], precision, "x")
    assert_close(packed, expected["outputs"]["px"], precision, "packed")
    weights = {name: value for name, value in inputs.items() if name.startswith("loss_weight")}
    loss = sum((out * weights[f"loss_weight_{name}"]).sum() for name, out in (("x", x), ("px", packed)))
    loss.backward()
    check_gradients(layer, leaves, expected, precision, prefix)


def test_the_nested_config_is_a_transformer_config():
    assert isinstance(nested_config(LunaConfig()), TransformerConfig)
