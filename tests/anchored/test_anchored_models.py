"""Test anchored attention in models: checkpoints, what the layers share, and rejected options."""

import pytest
import torch
from tiny_luna import OPTIONS, Task, assert_close, batch, example, tiny_model
from tiny_masked_lm import tiny_model as tiny_masked_lm

from fairseq.data import Dictionary
from luna_fairseq.anchored import geometry
from luna_fairseq.errors import InputError

ANCHORED = {"anchored_packed": True}


@pytest.mark.parametrize("build", [tiny_model, tiny_masked_lm])
@pytest.mark.parametrize("options, others", [({}, ANCHORED), (ANCHORED, {})])
def test_checkpoints_with_and_without_anchors_are_not_interchangeable(build, options, others):
    state = build(**options).state_dict()
    with pytest.raises(
        InputError, match=r"another architecture than the model: .*anchor.*Use the --arch"
    ) as error:
        build(**others).load_state_dict(state)
    assert "\n" not in str(error.value)


def test_a_checkpoint_keeps_its_initial_strength():
    model, other = tiny_model(**ANCHORED, anchor_strength=8.0), tiny_model(**ANCHORED)
    other.load_state_dict(model.state_dict())
    source, target = (batch(x) for x in example())
    assert torch.equal(other(source, None, target)[0], model(source, None, target)[0])


@pytest.mark.parametrize(
    "build, options",
    [
        (tiny_masked_lm, {"local_parts": 3, "encoder_layers": 1}),
        (tiny_model, {"local_parts": 3, "packed_lookup": 2, "diagonal_prior": True}),
        (tiny_model, {"cross_attention": "softmax", "diagonal_prior": True}),
    ],
)
def test_the_geometry_of_a_batch_is_what_the_layers_need(build, options):
    """A factory derives from its options what the modules that it builds need, before it builds them."""
    model = build(**ANCHORED, **options)
    sides = [model.encoder] if build is tiny_model else [model.encoder.sentence_encoder]
    sides += [model.decoder] if build is tiny_model else []
    for side in sides:
        modules = [getattr(layer, "encoder_attn", layer.self_attn) for layer in side.layers]
        each = [attention.needs() for attention in modules]
        assert side.attentions.needs == geometry.Needs(*map(max, zip(*each)))


def test_parameters_are_added_only_by_the_options():
    names = tiny_model().state_dict()
    assert not [name for name in names if "anchor" in name or "gate" in name]
    anchored = tiny_model(**ANCHORED, packed_lookup=1).state_dict()
    added = set(anchored) - set(names)
    # Pack attention in all layers, unpack attention in the encoder and the gate in the decoder each have a
    # change and a start. The decoder also has weights and biases of the keys and values of tokens.
    assert len(added) == 2 * (2 * OPTIONS["encoder_layers"] + (2 + 2) * OPTIONS["decoder_layers"])
    assert sum(anchored[name].numel() for name in added if name.endswith("change")) == 2 * (2 + 3) + 3 * (
        4 + 2
    )


@pytest.mark.parametrize(
    "options", [{}, {"packed_lookup": 2}, {"cross_attention": "softmax"}, {"sentence_diagonal": True}]
)
def test_padding_does_not_change_target_positions(options):
    model = tiny_model(**ANCHORED, diagonal_prior=True, **options)
    source, target = example()
    on_the_right, on_the_left = batch(target), batch(target, left=True)
    outputs = [model(batch(source), None, tokens)[0] for tokens in (on_the_right, on_the_left)]
    for b, sentence in enumerate(target):
        n = len(sentence)
        assert_close(outputs[1][b, -n:], outputs[0][b, :n])


def test_a_sentence_diagonal_needs_a_separator():
    task = Task()
    task.target_dictionary = Dictionary()
    with pytest.raises(InputError, match="the dictionary has no <sep>"):
        tiny_model(task=task, **ANCHORED, diagonal_prior=True, sentence_diagonal=True)


def test_distances_are_computed_once_for_all_layers(monkeypatch):
    calls = []
    original = geometry.anchor_distances
    monkeypatch.setattr(geometry, "anchor_distances", lambda *a, **k: calls.append(a) or original(*a, **k))
    model = tiny_model(**ANCHORED)
    source, target = (batch(x) for x in example())
    model(source, None, target)
    assert len(calls) == 3  # pack and unpack attention in the encoder, pack attention in the decoder


@pytest.mark.parametrize(
    "options, message",
    [
        ({**ANCHORED, "anchor_strength": -1.0}, "--anchor-strength -1: must be above 0"),
        ({"packed_lookup": 2}, "--packed-lookup needs --anchored-packed"),
        ({**ANCHORED, "packed_lookup": -2}, "--packed-lookup -2: must be at least 0"),
        ({"diagonal_prior": True}, "--diagonal-prior needs --anchored-packed"),
        ({**ANCHORED, "sentence_diagonal": True}, "--sentence-diagonal needs --diagonal-prior"),
        ({"local_parts": 3}, "--local-parts needs --anchored-packed"),
        ({**ANCHORED, "local_parts": 2}, "--local-parts must be an odd number of segments"),
        ({**ANCHORED, "local_parts": -1}, "--local-parts -1: must be at least 0"),
        ({**ANCHORED, "packed_lookup": 2, "cross_attention": "softmax"}, "cannot be combined"),
    ],
)
def test_bad_options_are_rejected(options, message):
    with pytest.raises(InputError, match=message):
        tiny_model(**options)
