"""The classifier of long sequences: pooling, batches, pairs, pixels, tied layers and bad input."""

from argparse import Namespace

import pytest
import torch
from tiny_luna import PAD, assert_close, dictionary
from tiny_models import CLASSIFIER_VARIANTS as VARIANTS
from tiny_models import classifier as tiny_model

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaClassifier
from luna_fairseq.models.architectures import encoder_sizes
from luna_fairseq.ops.absorbed import PACK_FORMS

variants = pytest.mark.parametrize("variant", list(VARIANTS))


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


def test_the_mean_of_a_long_sequence_does_not_overflow_in_float16(monkeypatch):
    model = tiny_model(sen_rep_type="mp")
    outputs = torch.full((16384, 1, 12), 8.0, dtype=torch.float16)
    tokens = batch((10000,), extra=6384)
    monkeypatch.setattr(model.encoder, "forward", lambda *_, **__: {"encoder_out": [outputs]})
    assert model.encode(tokens).eq(8).all()


def test_twin_has_the_same_skeleton():
    """Luna and the Transformer have the same parameters, except those of attention and P."""

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
        calls = []
        tied.encoder.layers[0].fc1.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        tied(batch())
        assert len(calls) == 3 and len(set(tied.encoder.layers)) == 1
        state = tied.state_dict()
        for name in list(state):
            if ".layers.0." in name:
                for number in (1, 2):
                    state[name.replace(".layers.0.", f".layers.{number}.")] = state[name]
        missing, unexpected = free.load_state_dict(state, strict=False)
        assert not missing
        assert_close(free(batch()), tied(batch()))


def test_what_nothing_reads_is_not_trained():
    frozen = {name for name, p in tiny_model(use_p=True).named_parameters() if not p.requires_grad}
    assert frozen and all(name.startswith("encoder.layers.1.") for name in frozen)
    assert not any("pack_" in name.replace("unpack_", "") for name in frozen)


def test_bert_weights():
    for layers in ("luna", "transformer"):
        torch.manual_seed(0)
        sizes = {**encoder_sizes(1, 96, 160, 4), "classifier_out_dim": 64, "encoder_projection_length": 64}
        options = Namespace(**sizes, apply_bert_init=True, layer_type=layers, sentence_class_num=10)
        model = LunaClassifier.build_model(options, Namespace(source_dictionary=dictionary(300), pairs=False))
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and "norm" not in name:
                if "out_proj" not in name or layers == "luna":
                    assert parameter.std().item() == pytest.approx(0.02, rel=0.06), name


def test_a_checkpoint_with_another_dictionary_is_refused():
    model, task = tiny_model(), Namespace(source_dictionary=dictionary(31), pairs=False)
    with pytest.raises(InputError, match="encoder dictionary has 23 entries, the data's has 31"):
        LunaClassifier.build_model(model.args, task).load_state_dict(model.state_dict())


TWIN = {"layer_type": "transformer"}
ANCHORED = {"anchored_packed": True, "encoder_layers": 2}


def logits_and_gradients(model, tokens, **options):
    model.zero_grad()
    logits = model(tokens, **options)
    logits.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def assert_all_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert_close(value, expected[name])


@pytest.mark.parametrize("options", [*VARIANTS.values(), ANCHORED])
def test_last_layer_computes_only_what_is_classified(options):
    """The results equal those of a model that computes the outputs of all tokens."""
    model, tokens = tiny_model(**options), batch()
    lengths = []
    model.encoder.layers[-1].fc1.register_forward_hook(lambda *call: lengths.append(len(call[2])))
    results = logits_and_gradients(model, tokens), logits_and_gradients(model, tokens, all_outputs=True)
    assert_all_close(*results)
    calls = options.get("encoder_layers", 2) if options.get("tie_layer_weights") else 1
    assert lengths[calls - 1] == (9 if options.get("sen_rep_type") == "mp" else 1)
    assert lengths[-1] == 9


def test_transformer_with_one_query_has_the_forms_of_pack_attention():
    model = tiny_model(**TWIN)
    results = {}
    for form in ("absorbed", "projected"):
        with PACK_FORMS.force(form) as taken:
            results[form] = logits_and_gradients(model, batch())
        assert taken == [form]
    assert_all_close(results["absorbed"], results["projected"])


@pytest.mark.parametrize("options", [*VARIANTS.values(), ANCHORED])
@pytest.mark.parametrize("groups", [2, 3, 7])
def test_length_groups_change_nothing_but_padding(options, groups):
    whole, grouped = tiny_model(**options), tiny_model(**options, length_groups=groups)
    lengths = []
    grouped.encoder.embed_tokens.register_forward_hook(lambda *call: lengths.append(call[1][0].size(1)))
    expected = logits_and_gradients(whole, batch((4, 9, 6, 2)))
    assert_all_close(logits_and_gradients(grouped, batch((4, 9, 6, 2))), expected)
    assert lengths == {2: [9, 4], 3: [9, 4, 2], 7: [9, 6, 4, 2]}[groups]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"use_p": True, **TWIN}, "--use-p: a Transformer has no packed sequence"),
        ({"anchored_packed": True, **TWIN}, "--anchored-packed: a Transformer has no packed sequence"),
        ({"input_type": "image"}, "--input-type image: the task reads texts; use --task lra-image"),
        ({"sentence_class_num": 1}, "--sentence-class-num 1: must be at least 2"),
        ({"encoder_layers": 0}, "--encoder-layers 0: must be at least 1"),
        ({"encoder_projection_length": 0}, "--encoder-projection-length 0: must be at least 1"),
        ({"encoder_attention_heads": 5}, "not divisible by 5"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(InputError, match=message):
        tiny_model(**options)


def test_images_have_no_length_groups():
    with pytest.raises(InputError, match="--length-groups 2: images have equal lengths; remove the option"):
        tiny_model(pixels=True, length_groups=2)
