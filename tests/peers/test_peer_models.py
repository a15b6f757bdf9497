"""Test that models with peer attentions can be built, trained and decoded, and refuse invalid options."""

from argparse import Namespace
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from peer_cases import SMALL, VARIANTS, Product, attention_name, beams, cases
from tiny_luna import PAD, Task, assert_close, batch, build_perturbed, example, sentences
from tiny_masked_lm import Task as LMTask

from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel, base_architecture
from luna_fairseq.errors import InputError
from luna_fairseq.models.generator_hub import GeneratorHub
from luna_fairseq.models.replaced_linears import replace_linears
from luna_fairseq.ops.attention import naive_softmax_weights
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.models import PeerClassifier, PeerRoberta, PeerTransformer

SIZES = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_ffn_embed_dim": 28,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "max_source_positions": 40,
    "max_target_positions": 40,
    "max_positions": 40,
}
causal, cross = ([name for name, _ in cases(form)] for form in ("causal", "cross"))


def model(family, dtype=torch.float64, task=None, **options):
    return build_perturbed(family, {**SIZES, **SMALL, **options}, task or Task(), dtype)


def translator(encoder="softmax", decoder="softmax", cross="softmax", **options):
    names = {"attention": encoder, "decoder_attention": decoder, "cross_attention": cross}
    variants = {key: value for name in names.values() for key, value in VARIANTS.get(name, {}).items()}
    names = {option: attention_name(name) for option, name in names.items()}
    return model(PeerTransformer, **{**names, **variants, **options})


INFORMER = {"information_block": True, "information_kernel": 3}


@pytest.mark.parametrize(
    "name, options",
    [
        ("softmax", {}),
        ("linformer", {"encoder_normalize_before": True}),
        ("conv_linformer", {**INFORMER, "encoder_normalize_before": True}),
        ("conv_linformer", INFORMER),
    ],
)
def test_the_encoder_gives_a_sentence_the_same_output_on_either_side_of_padding(name, options):
    peer = translator(name, **options)
    source, _ = example()
    left, right = (peer.encoder(batch(source, left=left, extra=3)) for left in (True, False))
    for b, tokens in enumerate(source):
        alone = peer.encoder(torch.tensor([tokens]))["encoder_out"][0][:, 0]
        n = len(tokens)
        assert_close(left["encoder_out"][0][-n:, b], alone)
        assert_close(right["encoder_out"][0][:n, b], alone)


@pytest.mark.parametrize("name", causal)
def test_the_decoder_gives_a_sentence_the_same_scores_on_either_side_of_padding(name):
    peer = translator(decoder=name)
    source, target = example()
    left, right = (peer(batch(source), None, batch(target, left, extra=2))[0] for left in (True, False))
    for b, (words, spoken) in enumerate(zip(source, target)):
        alone = peer(torch.tensor([words]), None, torch.tensor([spoken]))[0][0]
        assert_close(right[b, : len(spoken)], alone)
        assert_close(left[b, -len(spoken) :], alone)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    "name, options",
    [("linformer", {}), ("conv_linformer", {}), ("synthesizer", {}), ("sinkhorn", {}), ("softmax", INFORMER)],
)
def test_padding_may_exceed_the_positions(name, options, left):
    peer = translator(name, **options)
    tokens = batch(sentences((40, 7), 23), left)
    padding = torch.full((2, 8), PAD)
    padded = torch.cat([padding, tokens] if left else [tokens, padding], dim=1)
    expected, found = (peer.encoder(given)["encoder_out"][0] for given in (tokens, padded))
    real = tokens.ne(PAD).t()
    assert_close((found[8:] if left else found[:40])[real], expected[real])


@pytest.mark.parametrize("name", ["softmax", "softmax, diagonal", "softmax, sentence diagonal"])
def test_step_by_step_equals_all_at_once(name):
    peer = translator(name, name, name)
    source, target = (batch(sentences) for sentences in example(target_lengths=(8, 8, 8, 8)))
    encoder_out, state = peer.encoder(source), {}
    expected = peer.decoder(target, encoder_out)[0]
    for t in range(target.size(1)):
        step = peer.decoder(target[:, : t + 1], encoder_out, incremental_state=state)[0]
        assert_close(step[:, -1], expected[:, t])


@pytest.mark.parametrize("name", [name for name in causal if name in cross])
def test_beam_search_finds_the_same_alone_and_in_a_batch(name):
    assert len(list(beams(translator(name, name, name), tolerance=1e-9))) == 4 * 3


@pytest.mark.parametrize("name", causal)
def test_decoding_with_replaced_linear_layers_gives_the_same(name):
    peer = translator(name, name, name if name in cross else "softmax")
    source, target = map(batch, example())
    expected = peer(source, None, target)[0]
    replace_linears(peer, Product)
    assert not any(type(part) is torch.nn.Linear for part in peer.modules())
    assert_close(peer(source, None, target)[0], expected)
    assert len(list(beams(peer, tolerance=1e-9))) == 4 * 3


def test_softmax_attention_is_fairseqs_transformer():
    """Parameters have the same names as in fairseq and give the same loss and alignments."""
    peer = translator()
    options = Namespace(**SIZES)
    base_architecture(options)
    theirs = TransformerModel.build_model(options, Task()).double().eval()
    theirs.load_state_dict(peer.state_dict())
    source, target = example()
    for src, tgt in ((batch(source, left=True), batch(target)), (batch(source[:1]), batch(target[:1]))):
        results = [m(src, None, tgt) for m in (peer, theirs)]
        real = tgt.ne(PAD)
        assert_close(results[0][0][real], results[1][0][real], tolerance=1e-6)  # their softmax is float32
        alignments = [extra["attn"][0][real] for _, extra in results]
        assert_close(*alignments, tolerance=1e-6)  # their softmax is float32


@pytest.mark.parametrize(
    "family, task, options",
    [
        (PeerTransformer, Task(), {"decoder_attention": "softmax", "cross_attention": "softmax"}),
        (PeerRoberta, LMTask(), INFORMER),
        (PeerRoberta, LMTask(), {}),
        (PeerClassifier, Namespace(source_dictionary=Task().source_dictionary, pairs=False), {}),
    ],
)
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_a_training_step_reaches_every_parameter(family, task, options, name):
    peer = model(family, torch.float32, task, attention=name, checkpoint_activations=True, **options).train()
    source, target = example()
    peer.set_num_updates(7)
    inputs = (batch(source), None, batch(target)) if family is PeerTransformer else (batch(source),)
    output = peer(*inputs)
    output = output[0] if isinstance(output, tuple) else output
    output.float().pow(2).sum().backward()
    assert [key for key, parameter in peer.named_parameters() if parameter.grad is None] == []


def test_recomputed_layers_read_the_target_places_of_their_own_batch():
    """Two batches run before the backward pass, which recomputes the layers of both."""
    source, target = example()
    gradients = []
    for checkpointed in (False, True):
        peer = translator(cross="softmax, sentence diagonal", checkpoint_activations=checkpointed).train()
        losses = [
            peer(batch(words), None, batch(spoken, left=left))[0].pow(2).sum()
            for words, spoken, left in ((source, target, False), (source[:2], target[:2], True))
        ]
        sum(losses).backward()
        gradients.append({name: parameter.grad for name, parameter in peer.named_parameters()})
    for name, expected in gradients[0].items():
        assert_close(gradients[1][name], expected)


def test_checkpointed_layers_behind_frozen_embeddings_train_under_autocast():
    source, target = (batch(words) for words in example())
    peer = model(PeerTransformer, torch.float32, checkpoint_activations=True).train()
    for parameter in (*peer.encoder.embed_tokens.parameters(), *peer.decoder.embed_tokens.parameters()):
        parameter.requires_grad_(False)
    dtypes = []
    for layer in peer.encoder.layers:
        layer.fc2.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = peer(source, None, target)[0].float().pow(2).sum()
    loss.backward()
    assert [key for key, p in peer.named_parameters() if p.requires_grad and p.grad is None] == []
    # The first layer, whose input needs no gradient, is not recomputed.
    assert dtypes == [torch.bfloat16] * (2 * len(peer.encoder.layers) - 1)


def test_roberta_with_softmax_attention_is_fairseqs():
    peer = model(PeerRoberta, task=LMTask())
    options = Namespace(**SIZES, untie_weights_roberta=False)
    theirs = RobertaModel.build_model(options, LMTask()).double().eval()
    theirs.load_state_dict(peer.state_dict())
    tokens = batch(example()[0])
    real = tokens.ne(PAD)
    assert_close(peer(tokens)[0][real], theirs(tokens)[0][real], tolerance=1e-6)  # their gelu is float32


def test_positions_of_a_checkpoint_that_the_model_lacks():
    peer = model(PeerRoberta, task=LMTask(), no_token_positional_embeddings=True, alibi=True)
    with pytest.raises(InputError, match="another architecture .*embed_positions"):
        peer.load_state_dict(model(PeerRoberta, task=LMTask()).state_dict())


@pytest.mark.parametrize("name", list(ATTENTIONS))
@pytest.mark.parametrize("pixels", [False, True])
def test_classifiers_of_tokens_and_pixels(name, pixels):
    dictionary = None if pixels else Task().source_dictionary
    task = Namespace(source_dictionary=dictionary, pairs=not pixels)
    options = {"attention": name, "sen_rep_type": "mp", "tie_layer_weights": True}
    peer = model(PeerClassifier, torch.float32, task, **options)
    x = torch.rand(3, 25) if pixels else batch(example()[0])
    logits = peer(x) if pixels else peer(x, src1_tokens=x)
    assert logits.shape == (len(x), 2) and logits.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [{"attention": name} for name in ATTENTIONS] + [{"information_block": True, "information_kernel": 6}],
)
def test_classifier_of_one_token_computes_one_output(options):
    task = Namespace(source_dictionary=Task().source_dictionary, pairs=False)
    peer, tokens = model(PeerClassifier, task=task, sen_rep_type="cls", **options), batch(example()[0])
    assert_close(peer(tokens), peer(tokens, all_outputs=True), tolerance=1e-6)


def test_layers_share_linformers_projections_where_asked_to():
    separate, shared = (
        model(PeerRoberta, task=LMTask(), attention="linformer", linformer_sharing=sharing)
        for sharing in ("key-value", "layerwise")
    )
    counts = [sum(p.numel() for p in m.parameters()) for m in (separate, shared)]
    assert counts[0] - counts[1] == SMALL["linformer_k"] * 40
    shared.load_state_dict(shared.state_dict())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"attention": "linformer"}, "--decoder-attention linformer is not possible, .* no causal form"),
        ({"attention": "local"}, "--cross-attention local is not possible, .* no cross form"),
        ({"cross_attention": "flare"}, "--cross-attention flare is not possible, .* no cross form"),
        (
            {"attention": "linear", "diagonal_prior": True},
            "--diagonal-prior needs .*, got linear",
        ),
        ({"decoder_embed_dim": 14}, "--decoder-embed-dim 14 differs from --encoder-embed-dim 12"),
    ],
)
def test_translation_refuses_what_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        model(PeerTransformer, **options)


@pytest.mark.parametrize("name", cross)
def test_alignments_are_refused_where_there_are_no_weights(name):
    peer, asked = translator(cross=name), Namespace(generation=Namespace(print_alignment="hard"))
    peer.prepare_for_inference_(Namespace(generation=Namespace(print_alignment=None, replace_unk=None)))
    if attention_name(name) == "softmax":
        peer.prepare_for_inference_(asked)
    else:
        hub = partial(
            GeneratorHub.generate,
            Namespace(models=[peer], is_limited_by_source=True),
            [],
            print_alignment="hard",
        )
        for ask in (partial(peer.prepare_for_inference_, asked), hub):
            with pytest.raises(
                InputError, match="^--print-alignment and --replace-unk need weights over the"
            ):
                ask()


def test_weights_over_the_source_are_computed_only_where_they_are_needed(monkeypatch):
    spy = Mock(wraps=naive_softmax_weights)
    monkeypatch.setattr("luna_fairseq.peers.softmax.naive_softmax_weights", spy)
    source, target = map(batch, example())

    def has_weights(peer):
        spy.reset_mock()
        weights = peer(source, None, target)[1]["attn"]
        assert spy.call_count == (weights is not None)
        return weights is not None

    peer = translator()
    assert has_weights(peer.eval()) and not has_weights(peer.train())
    peer.eval().make_generation_fast_(need_attn=False)
    assert not has_weights(peer)
    peer = translator().eval()
    peer.make_generation_fast_(need_attn="hard")  # --print-alignment
    assert has_weights(peer)
    task = Task()
    task.cfg = Namespace(load_alignments=True)
    assert has_weights(model(PeerTransformer, task=task).train())


def test_full_context_alignment_is_refused():
    source, target = example()
    peer = translator()
    with pytest.raises(InputError, match="Full-context alignment is not possible"):
        peer.decoder(batch(target), peer.encoder(batch(source)), full_context_alignment=True)
