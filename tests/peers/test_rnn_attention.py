"""Test that recurrent models with attention follow the papers and handle padding and invalid options."""

from argparse import Namespace

import pytest
import torch
from peer_cases import Product, beams
from tiny_luna import PAD, Task, assert_close, batch, dictionary, example, perturb

from luna_fairseq.errors import InputError
from luna_fairseq.models.replaced_linears import replace_linears
from luna_fairseq.peers.rnn_attention import RnnAttentionModel

SIZES = {
    "encoder_embed_dim": 6,
    "encoder_hidden_size": 5,
    "encoder_layers": 2,
    "decoder_embed_dim": 7,
    "decoder_hidden_size": 10,
    "decoder_layers": 2,
    "decoder_out_embed_dim": 9,
    "dropout": 0.0,
    "max_source_positions": 30,
}
VARIANTS = {
    "bahdanau": {"attention": "bahdanau"},
    "bahdanau, gru": {"attention": "bahdanau", "cell": "gru"},
    "bahdanau, local-m": {"attention": "bahdanau", "local": "monotonic", "local_window": 1},
    "luong": {},
    "luong, gru": {"cell": "gru"},
    "luong, input feeding": {"input_feeding": True},
    "luong, dot, local-p": {"score": "dot", "local": "predictive", "local_window": 2},
    "luong, content, local-m": {"score": "content", "local": "monotonic", "local_window": 1},
    "luong, location": {"score": "location"},
    "luong, concat, feeding, local-m": {
        "score": "concat",
        "input_feeding": True,
        "local": "monotonic",
        "local_window": 2,
    },
}


def model(variant="luong", dtype=torch.float64, task=None, **options):
    torch.manual_seed(0)
    options = {**SIZES, **VARIANTS[variant], **options}
    built = RnnAttentionModel.build_model(Namespace(**options), task or Task())
    return perturb(built, 0.5).to(dtype).eval()


def one_layer(attention, cell, **options):
    """Build a model with one layer, and functions that compute its steps from the formulas.

    Returns:
        Logits of the model, embeddings of the target, decoder states, function that moves the states by one
        step,
        function that attends to the source, and decoder.
    """
    rnn = model(attention, cell=cell, encoder_layers=1, decoder_layers=1, **options)
    source, target = example()
    source, target = torch.tensor(source[:1]), torch.tensor(target[:1])
    encoder_out = rnn.encoder(source)
    decoder = rnn.decoder
    states = [linear(final)[:, 0] for linear, final in zip(decoder.bridge, encoder_out["final"])]
    states[0] = torch.tanh(states[0])
    step = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}[cell]
    step = step(decoder.rnn.input_size, decoder.rnn.hidden_size).double()
    step.load_state_dict({k.replace("_l0", ""): v for k, v in decoder.rnn.state_dict().items()})

    def move(x):
        new = step(x, tuple(states) if cell == "lstm" else states[0])
        states[:] = new if cell == "lstm" else [new]
        return states[0]

    memory = encoder_out["encoder_out"][0].transpose(0, 1)

    def attend(state):
        keys = decoder.encoder_attn.compute_keys(memory)
        padding = torch.zeros(memory.shape[:2], dtype=torch.bool)
        return decoder.encoder_attn(state[:, None], memory, keys, padding)[0][:, 0]

    words = decoder.embed_tokens(target)[0][:, None]
    return rnn(source, None, target)[0], words, states, move, attend, decoder


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_bahdanau_asks_with_the_state_before_and_the_context_enters_the_cell(cell):
    actual, words, states, move, attend, decoder = one_layer("bahdanau", cell)
    for t, word in enumerate(words):
        context = attend(states[0])
        state = move(torch.cat([word, context], dim=1))
        output = torch.tanh(decoder.readout(torch.cat([state, context, word], dim=1)))
        assert_close(actual[:, t], decoder.output_projection(output))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("feeding", [False, True])
def test_luong_asks_with_the_state_now_and_the_context_goes_to_the_output(cell, feeding):
    actual, words, _, move, attend, decoder = one_layer("luong", cell, input_feeding=feeding)
    output = torch.zeros(1, SIZES["decoder_out_embed_dim"], dtype=torch.float64)
    for t, word in enumerate(words):
        state = move(torch.cat([word, output], dim=1) if feeding else word)
        output = torch.tanh(decoder.readout(torch.cat([state, attend(state)], dim=1)))
        assert_close(actual[:, t], decoder.output_projection(output))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_sentence_gives_the_same_alone_and_in_a_batch_on_either_side_of_padding(variant):
    rnn = model(variant)
    source, target = example()
    sides = [rnn(batch(source, left, extra=3), None, batch(target, left, extra=2)) for left in (True, False)]
    for b, (words, spoken) in enumerate(zip(source, target)):
        alone, extra = rnn(torch.tensor([words]), None, torch.tensor([spoken]))
        T, S = len(spoken), len(words)
        for left, (scores, more) in zip((True, False), sides):
            spoken_at = slice(-T, None) if left else slice(T)
            assert_close(scores[b, spoken_at], alone[0])
            weights = more["attn"][0][b, spoken_at]
            real = weights[:, -S:] if left else weights[:, :S]
            assert_close(real, extra["attn"][0][0])
            assert_close(weights.sum(-1), real.sum(-1))
            if "local-p" not in variant:
                assert_close(weights.sum(-1), torch.ones(T).double())


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_decoding_step_by_step_equals_all_at_once(variant):
    rnn = model(variant)
    source, target = example(target_lengths=(8, 3, 5, 7))
    source, target, state = batch(source, left=True), batch(target), {}
    with torch.no_grad():
        encoder_out = rnn.encoder(source)
        expected, extra = rnn.decoder(target, encoder_out)
        steps = [rnn.decoder(target[:, : t + 1], encoder_out, incremental_state=state) for t in range(8)]
    assert_close(torch.cat([scores for scores, _ in steps], dim=1), expected)
    assert_close(torch.cat([more["attn"][0] for _, more in steps], dim=1), extra["attn"][0])


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_beam_search_finds_the_same_alone_and_in_a_batch(variant):
    found = list(beams(model(variant), tolerance=1e-6))
    assert len(found) == 4 * 3
    for length, alone, together in found:
        assert_close(alone["attention"], together["attention"][-length:], tolerance=1e-6)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_decoding_with_replaced_linear_layers_gives_the_same(variant):
    rnn = model(variant)
    source, target = map(batch, example())
    expected = rnn(source, None, target)[0]
    replace_linears(rnn, Product)
    assert_close(rnn(source, None, target)[0], expected)
    assert len(list(beams(rnn, tolerance=1e-6))) == 4 * 3


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_embeddings_and_outputs_have_dropout_in_training_alone(variant):
    rnn, (source, target) = model(variant), map(torch.tensor, ([[4, 5, 6, 2], [7, 8, 9, 2]], [[4], [5]]))
    rnn.encoder.dropout_module.p = rnn.decoder.dropout_module.p = 1.0
    encoded = rnn.encoder(source)
    assert encoded["encoder_out"][0].any() and not encoded["final"][0][0].equal(encoded["final"][0][1])
    dropped = rnn.encoder.train()(source)
    assert not dropped["encoder_out"][0].any()
    assert_close(dropped["final"][0][0], dropped["final"][0][1])
    rnn.decoder.train()
    incremental_state = {}
    same = {name: [x[:, :1].expand_as(x) if name == "encoder_out" else x[:1].expand_as(x) for x in values]
            for name, values in encoded.items()}  # fmt: skip
    features, _ = rnn.decoder.extract_features(target, same, incremental_state)
    assert not features.any()
    (state,) = incremental_state.values()
    assert_close(state["state0"][0], state["state0"][1])


def test_retained_dropout_includes_the_dropout_between_layers():
    rnn = model(dropout=0.5)
    rnn.make_generation_fast_(retain_dropout=True, retain_dropout_modules="RnnEncoder")
    rnn.eval()
    assert rnn.encoder.rnn.training and not rnn.decoder.rnn.training and not rnn.encoder.training
    rnn.encoder.dropout_module.p = 0.0  # the dropout between the layers alone
    source = torch.tensor([[4, 5, 6, 2]])
    first, second = (rnn.encoder(source)["encoder_out"][0] for _ in range(2))
    assert not torch.equal(first, second)
    rnn = model(dropout=0.5)
    rnn.make_generation_fast_()
    assert not rnn.encoder.rnn.training


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_a_training_step_reaches_every_parameter(variant, shared):
    task, more = Task(), {}
    if shared:
        task.target_dictionary = task.source_dictionary = dictionary(23)
        more = {"share_all_embeddings": True, "decoder_embed_dim": 6, "decoder_out_embed_dim": 6}
    rnn = model(variant, torch.float32, task, **more).train()
    source, target = example()
    rnn(batch(source), None, batch(target))[0][batch(target).ne(PAD)].pow(2).sum().backward()
    assert [name for name, parameter in rnn.named_parameters() if parameter.grad is None] == []
    ends = ("embed_tokens.weight", "output_projection.weight")
    assert sum(name.endswith(ends) for name, _ in rnn.named_parameters()) == (1 if shared else 3)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"encoder_layers": 1},
            "got --encoder-layers 1 and --decoder-layers 2",
        ),
        (
            {"attention": "bahdanau", "input_feeding": True},
            "--input-feeding has no effect with",
        ),
        (
            {"score": "dot", "decoder_hidden_size": 12},
            "got 12 in the decoder and 2 x 5 in the encoder. Use --decoder-hidden-size 10",
        ),
        ({"local": "predictive"}, "--local predictive needs a window"),
        (
            {"share_all_embeddings": True},
            "Expected equal widths for --share-all-embeddings, got --encoder-embed-dim 6",
        ),
        (
            {"share_all_embeddings": True, "decoder_embed_dim": 6, "decoder_out_embed_dim": 6},
            "--share-all-embeddings needs a joined dictionary",
        ),
        (
            {"share_decoder_input_output_embed": True},
            "Expected equal widths for shared embeddings, got --decoder-out-embed-dim 9",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        model(**options)
