"""The masked language model: batches, gradients, noise, initialisation and bad input."""

import re
from argparse import Namespace

import pytest
import torch
from tiny_luna import PAD, assert_close, batch, sentences
from tiny_masked_lm import BOS, HEADS, VARIANTS, Task, tiny_model

from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import encoder_sizes
from luna_fairseq.models.fairseq_layers import activation_function
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

variants = pytest.mark.parametrize("variant", list(VARIANTS))


def example(token_counts=(9, 4, 6, 2), seed=0):
    return [[BOS, *tokens] for tokens in sentences(token_counts, 22, seed)]


def outputs(model, tokens):
    """Return all outputs of the model for each sentence of a batch, without padding."""
    logits, extra = model(tokens)
    features, _ = model(tokens, features_only=True)
    heads = torch.cat([model(tokens, classification_head_name=head)[0] for head in HEADS], dim=1)
    mask, found = extra["packed_padding_mask"], []
    for b in range(len(tokens)):
        real = tokens[b].ne(PAD)
        packed = extra["packed_features"][b, slice(None) if mask is None else ~mask[b]]
        found.append((logits[b, real], features[b, real], packed, heads[b]))
    return found


def assert_same_one_at_a_time(model, token_lists, extra=0):
    with torch.no_grad():
        together = outputs(model, batch(token_lists, extra=extra))
        for tokens, found in zip(token_lists, together):
            (alone,) = outputs(model, torch.tensor([tokens]))
            for actual, expected in zip(found, alone):
                assert_close(actual, expected)


@variants
@pytest.mark.parametrize("extra", [0, 3])
def test_batch_and_padding_do_not_matter(variant, extra):
    assert_same_one_at_a_time(tiny_model(**VARIANTS[variant]), example(), extra)


def test_heads_differ():
    model = tiny_model()
    logits = torch.stack([model(batch(example()), classification_head_name=head)[0] for head in HEADS])
    assert torch.cdist(logits.flatten(1), logits.flatten(1)).fill_diagonal_(1).min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gelu_of_half_precision_is_computed_in_float32(dtype):
    gelu, x = activation_function("gelu"), torch.linspace(-6, 6, 4001).to(dtype)
    assert torch.equal(gelu(x), torch.nn.functional.gelu(x.float()).to(dtype))
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    assert_close(gelu(x), x * (1 + torch.erf(x / 2**0.5)) / 2)


def test_initial_weights():
    torch.manual_seed(0)
    sizes = {**encoder_sizes(1, 96, 160, 4), "projection_length": 64, "max_positions": 200}
    model = LunaMaskedLM.build_model(Namespace(**sizes), Task(300, 200))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif re.search(r"layer_?norm", name):
            assert (parameter == 1).all(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
    assert not model.encoder.sentence_encoder.embed_tokens.weight[PAD].any()
    for head in HEADS:
        model.register_classification_head(head, num_classes=3)
        dense = model.classification_heads[head].dense.weight
        assert dense.abs().max().item() == pytest.approx(96**-0.5, rel=0.02)  # nn.Linear's own


def test_pruned_layers():
    full = tiny_model(encoder_layers=3, heads=())
    pruned = tiny_model(encoder_layers_to_keep="0,2", heads=())
    cfg = Namespace(arch="luna_bert", encoder_layers_to_keep="0,1")
    pruned.load_state_dict(full.state_dict(), model_cfg=cfg)
    first = [model.encoder.sentence_encoder.layers[1].fc1.weight for model in (full, pruned)]
    assert torch.equal(*first)


def test_bad_input():
    model = tiny_model()
    with pytest.raises(InputError, match="has 41 tokens, the model's positions end at 40: .*--max-positions"):
        model(torch.full((1, 41), 5))
    assert_same_one_at_a_time(model, example((39, 4)), extra=8)  # padding may exceed the positions
    with pytest.raises(InputError, match="no classification head 'sst2'; its heads: sentence_.*, mean"):
        model(batch(example()), classification_head_name="sst2")
    with pytest.raises(InputError, match="up to 1024 tokens, .* 40 positions: use --tokens-per-sample 40"):
        LunaMaskedLM.build_model(model.args, Task(23, 1024))
    with pytest.raises(InputError, match="checkpoint's dictionary has 23 entries, the data's has 31"):
        LunaMaskedLM.build_model(model.args, Task(31)).load_state_dict(model.state_dict())
    with pytest.raises(InputError, match="has 40 positions, the model has 60: use --max-positions 40"):
        tiny_model(max_positions=60).load_state_dict(model.state_dict())
    with pytest.raises(InputError, match="has another architecture than the model"):
        tiny_model(encoder_ffn_embed_dim=24).load_state_dict(model.state_dict())
