"""The classifier of long sequences: pooling, batches, pairs, pixels, tied layers, noise, half precision, bad
input."""

from argparse import Namespace

import pytest
import torch
from tiny_luna import PAD, assert_close, dictionary

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaClassifier

OPTIONS = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_projection_length": 5,
    "classifier_out_dim": 7,
    "sentence_class_num": 4,
    "max_positions": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
VARIANTS = {
    "cls": {},
    "mean": {"sen_rep_type": "mp"},
    "P": {"use_p": True},
    "P, one layer": {"use_p": True, "encoder_layers": 1},
    "P, tied layers": {"use_p": True, "tie_layer_weights": True},
    "tied layers": {"tie_layer_weights": True, "encoder_layers": 3},
    "untied kv": {"untie_luna_kv": True},
    "pre-norm": {"encoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True},
    "twin": {"layer_type": "transformer"},
    "twin, mean": {"layer_type": "transformer", "sen_rep_type": "mp"},
    "twin, tied layers": {"layer_type": "transformer", "tie_layer_weights": True},
}
variants = pytest.mark.parametrize("variant", list(VARIANTS))


def tiny_model(dtype=torch.float64, pixels=False, pairs=False, **options):
    torch.manual_seed(0)
    task = Namespace(source_dictionary=None if pixels else dictionary(23), pairs=pairs)
    model = LunaClassifier.build_model(Namespace(**{**OPTIONS, **options}), task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).eval()


def batch(lengths=(9, 4, 6, 2), extra=0, seed=0):
    torch.manual_seed(seed)
    tokens = torch.randint(4, 23, (len(lengths), max(lengths) + extra))
    for row, length in zip(tokens, lengths):
        row[length:] = PAD
    return tokens


@variants
def test_batch_and_padding_do_not_matter(variant):
    model, lengths = tiny_model(**VARIANTS[variant]), (9, 4, 6, 2)
    tokens = batch(lengths, extra=3)
    tokens = torch.where(torch.arange(12) < torch.tensor(lengths)[:, None], tokens, PAD)
    together = model(tokens)
    for row, length, logits in zip(tokens, lengths, together):
        assert_close(model(row[None, :length])[0], logits)
    assert torch.pdist(together).min() > 1e-4


@pytest.mark.parametrize("combination, width", [("concat", 24), ("nli", 48)])
@pytest.mark.parametrize("layers", ["luna", "transformer"])
def test_pairs(combination, width, layers):
    model = tiny_model(pairs=True, pair_combination=combination, layer_type=layers)
    assert model.classifier[0].in_features == width
    first, second = batch((5, 7, 3)), batch((8, 2, 6), seed=1)
    together = model(first, None, second)
    for i in range(3):
        one = [tokens[i : i + 1, : int(tokens[i].ne(PAD).sum())] for tokens in (first, second)]
        assert_close(model(one[0], src1_tokens=one[1])[0], together[i])
    assert (model(second, src1_tokens=first) - together).abs().min() > 1e-6
    with pytest.raises(InputError, match="classifies pairs of sequences, the data has single"):
        model(first)
    with pytest.raises(InputError, match="classifies single sequences, the data has pairs"):
        tiny_model()(first, src1_tokens=second)


@variants
def test_pixels(variant):
    model = tiny_model(pixels=True, **VARIANTS[variant])
    pixels = torch.randn(3, 16, dtype=torch.float64)
    logits = model(pixels)
    assert_close(model(pixels[1:2])[0], logits[1])
    changed = pixels.clone()
    changed[:, 7] += 1
    assert (model(changed) - logits).abs().max() > 1e-6  # no pixel is taken for padding, nor left out
    cls = VARIANTS[variant].get("sen_rep_type") != "mp" and "use_p" not in VARIANTS[variant]
    assert model.max_positions() == 40 - cls


def test_twin_has_the_same_skeleton():
    """Parameters outside of attention and P are the same, by name and by shape."""

    def skeleton(model):
        return {
            name: parameter.shape
            for name, parameter in model.named_parameters()
            if "self_attn." not in name and "packed" not in name
        }

    assert skeleton(tiny_model()) == skeleton(tiny_model(layer_type="transformer"))


def test_tied_layers_are_one_layer_several_times():
    for layers in ("luna", "transformer"):
        tied = tiny_model(tie_layer_weights=True, encoder_layers=3, layer_type=layers)
        free = tiny_model(encoder_layers=3, layer_type=layers, sen_rep_type="cls")
        assert len(list(tied.encoder.layers)) == 3 and len(set(tied.encoder.layers)) == 1
        state = tied.state_dict()
        for name in list(state):
            if ".layers.0." in name:
                for number in (1, 2):
                    state[name.replace(".layers.0.", f".layers.{number}.")] = state[name]
        missing, unexpected = free.load_state_dict(state, strict=False)
        assert not missing
        assert_close(free(batch()), tied(batch()))


def loss_and_gradients(model, tokens=None, seed=0):
    torch.manual_seed(seed)
    model.zero_grad()
    logits = model(batch() if tokens is None else tokens).float()
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 1])[: len(logits)])
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@variants
@pytest.mark.parametrize("pixels", [False, True])
def test_every_trained_parameter_gets_a_gradient(variant, pixels):
    model = tiny_model(pixels=pixels, **VARIANTS[variant]).train()
    _, gradients = loss_and_gradients(model, torch.rand(4, 9) if pixels else None)
    assert gradients.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(gradient.any() or name.endswith("k_proj.bias") for name, gradient in gradients.items())


def test_what_nothing_reads_is_not_trained():
    frozen = {name for name, p in tiny_model(use_p=True).named_parameters() if not p.requires_grad}
    assert frozen and all(name.startswith("encoder.layers.1.") for name in frozen)
    assert not any("pack_" in name.replace("unpack_", "") for name in frozen)


@pytest.mark.parametrize("variant", ["cls", "P", "tied layers", "twin", "twin, tied layers"])
def test_activation_checkpointing_changes_nothing(variant):
    noise = {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.1}
    plain = tiny_model(**VARIANTS[variant], **noise).train()
    other = tiny_model(**VARIANTS[variant], **noise, checkpoint_activations=True).train()
    other.load_state_dict(plain.state_dict())
    (loss, gradients), (again, again_gradients) = loss_and_gradients(plain), loss_and_gradients(other)
    assert loss == pytest.approx(again, rel=1e-6)
    for name, gradient in gradients.items():
        assert_close(again_gradients[name], gradient)


@variants
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("pixels", [False, True])
def test_half_precision_is_finite_and_near(variant, dtype, tolerance, pixels):
    model = tiny_model(pixels=pixels, **VARIANTS[variant])
    tokens = torch.rand(4, 9, dtype=torch.float64) if pixels else batch()
    expected, _ = loss_and_gradients(model, tokens)
    loss, gradients = loss_and_gradients(model.to(dtype), tokens.to(dtype) if pixels else tokens)
    assert loss == pytest.approx(expected, abs=tolerance)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_bert_weights():
    for layers in ("luna", "transformer"):
        torch.manual_seed(0)
        sizes = {"encoder_embed_dim": 96, "encoder_ffn_embed_dim": 160, "classifier_out_dim": 64}
        sizes.update(encoder_layers=1, encoder_attention_heads=4, encoder_projection_length=64)
        options = Namespace(**sizes, apply_bert_init=True, layer_type=layers, sentence_class_num=10)
        model = LunaClassifier.build_model(options, Namespace(source_dictionary=dictionary(300), pairs=False))
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and "norm" not in name:
                if "out_proj" not in name or layers == "luna":
                    assert parameter.std().item() == pytest.approx(0.02, rel=0.06), name


@pytest.mark.parametrize(
    "options, message",
    [
        ({"use_p": True, "layer_type": "transformer"}, "--use-p: a Transformer has no packed sequence"),
        ({"input_type": "image"}, "--input-type image: the task reads texts; give --task lra-image"),
        ({"sentence_class_num": 1}, "--sentence-class-num is 1"),
        ({"encoder_layers": 0}, "--encoder-layers is 0: it must be 1 or more"),
        ({"encoder_projection_length": 0}, "projection length is 0"),
        ({"encoder_attention_heads": 5}, "not divisible by 5"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(InputError, match=message):
        tiny_model(**options)
