"""The masked language model: batches, gradients, noise, initialisation, bad input."""

import re
from argparse import Namespace

import pytest
import torch
from tiny_luna import PAD, assert_close, batch, sentences
from tiny_masked_lm import BOS, HEADS, VARIANTS, Task, tiny_model

from luna_fairseq.errors import InputError
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM
from luna_fairseq.modules.fairseq_layers import activation_function

variants = pytest.mark.parametrize("variant", list(VARIANTS))


def example(token_counts=(9, 4, 6, 2), seed=0):
    return [[BOS, *tokens] for tokens in sentences(token_counts, 22, seed)]


def outputs(model, tokens):
    """Everything the model gives for a batch, sentence by sentence, without padding."""
    logits, extra = model(tokens)
    features, _ = model(tokens, features_only=True)
    heads = torch.cat([model(tokens, classification_head_name=head)[0] for head in HEADS], dim=1)
    mask, found = extra["packed_padding_mask"], []
    for b in range(len(tokens)):
        real = tokens[b].ne(PAD)
        packed = extra["packed_features"][b]
        found.append(
            (logits[b, real], features[b, real], packed if mask is None else packed[~mask[b]], heads[b])
        )
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


def loss_and_gradients(model, head=None, seed=0):
    tokens = batch(example())
    torch.manual_seed(seed)
    model.zero_grad()
    if head is None:
        masked = tokens.ne(PAD) & (torch.arange(tokens.size(1)) % 3 == 1)
        logits = model(tokens, masked_tokens=masked)[0]
        target = tokens[masked]
    else:
        logits, target = model(tokens, classification_head_name=head)[0], torch.tensor([0, 1, 2, 1])
    loss = torch.nn.functional.cross_entropy(
        logits.float() if torch.finfo(logits.dtype).bits == 16 else logits, target
    )
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@variants
def test_every_parameter_gets_a_gradient_in_pretraining(variant):
    model = tiny_model(heads=(), **VARIANTS[variant]).train()
    _, gradients = loss_and_gradients(model)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, gradient in gradients.items():
        # Exactly zero in theory: a bias of softmax keys alone shifts all logits of a query alike.
        assert gradient.any() or name.endswith("pack_k_proj.bias"), name


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("variant", ["tied", "pre-norm"])
def test_every_parameter_but_the_lm_heads_gets_a_gradient_in_fine_tuning(variant, head):
    model = tiny_model(heads=(head,), **VARIANTS[variant]).train()
    _, gradients = loss_and_gradients(model, head)
    missing = dict(model.named_parameters()).keys() - gradients.keys()
    # The mean and the maximum of P do not read the last X, nor what makes it.
    last = (
        r"|encoder\.sentence_encoder\.(layer_norm|layers\.1\.(fc|final|"
        r"self_attn_layer_norm|self_attn\.(unpack|out)))"
    )
    expected = r"encoder\.lm_head\." + (last if head.startswith(("mean", "pooling")) else "")
    assert not [name for name in missing if not re.match(expected, name)]
    reads_packed = head != "sentence_classification_head"
    assert ("encoder.sentence_encoder.packed_layer_norm.weight" in gradients) == reads_packed


def test_heads_differ():
    model = tiny_model()
    logits = torch.stack([model(batch(example()), classification_head_name=head)[0] for head in HEADS])
    assert torch.cdist(logits.flatten(1), logits.flatten(1)).fill_diagonal_(1).min() > 1e-3


@pytest.mark.parametrize(
    "noise",
    [
        {"dropout": 0.3},
        {"attention_dropout": 0.3},
        {"activation_dropout": 0.3},
        {"encoder_layerdrop": 0.5},
        {"quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4},
    ],
    ids=lambda noise: next(iter(noise)),
)
def test_noise_acts_in_training_alone(noise):
    model = tiny_model(heads=(), **noise)
    assert loss_and_gradients(model, seed=1)[0] == loss_and_gradients(model, seed=2)[0]
    model.train()
    assert len({loss_and_gradients(model, seed=seed)[0] for seed in range(6)}) > 1


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_half_precision_is_finite_and_near(dtype, tolerance):
    model = tiny_model()
    for head in (None, *HEADS):
        expected, _ = loss_and_gradients(model.double(), head)
        loss, gradients = loss_and_gradients(model.to(dtype), head)
        assert loss == pytest.approx(expected, abs=tolerance)
        assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gelu_of_half_precision_is_computed_in_float32(dtype):
    gelu, x = activation_function("gelu"), torch.linspace(-6, 6, 4001).to(dtype)
    assert torch.equal(gelu(x), torch.nn.functional.gelu(x.float()).to(dtype))
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    assert_close(gelu(x), x * (1 + torch.erf(x / 2**0.5)) / 2)


def test_initial_weights():
    torch.manual_seed(0)
    sizes = {
        "encoder_embed_dim": 96,
        "encoder_ffn_embed_dim": 160,
        "projection_length": 64,
        "max_positions": 200,
    }
    options = Namespace(**sizes, encoder_layers=1, encoder_attention_heads=4)
    model = LunaMaskedLM.build_model(options, Task(300, 200))
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
    with pytest.raises(
        InputError, match="no classification head 'sst2'; its heads: sentence_classification_head, mean"
    ):
        model(batch(example()), classification_head_name="sst2")
    with pytest.raises(
        InputError, match="up to 1024 tokens, the model has 40 positions: give --tokens-per-sample 40"
    ):
        LunaMaskedLM.build_model(model.args, Task(23, 1024))
    with pytest.raises(InputError, match="checkpoint's dictionary has 23 entries, the data's has 31"):
        LunaMaskedLM.build_model(model.args, Task(31)).load_state_dict(model.state_dict())
    with pytest.raises(
        InputError, match="checkpoint has 40 positions, the model 60: give --max-positions 40"
    ):
        tiny_model(max_positions=60).load_state_dict(model.state_dict())
    with pytest.raises(InputError, match="of another architecture than the model"):
        tiny_model(encoder_ffn_embed_dim=24).load_state_dict(model.state_dict())
