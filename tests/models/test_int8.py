"""Decoding with 8-bit weights: nearly the same logits, and a message of one line if it is not supported."""

import pytest
import torch
from tiny_luna import batch, decode, example, sentences
from tiny_luna import tiny_model as translation_model
from tiny_models import language_model as tiny_model

from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel, int8


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("given", [{}, {"untie_luna_kv": True, "causal_decay": True}])
def test_logits_are_nearly_the_same(given, bits, monkeypatch):
    if bits == 8 and not int8.has_exact_8_bit_sums():
        pytest.skip("sums of products of 8 bits overflow on this CPU")
    monkeypatch.setattr(int8, "has_exact_8_bit_sums", lambda: bits == 8)
    model, tokens = tiny_model(torch.float32, int8=True, **given), batch(sentences((9, 7), 23))
    expected = model(tokens)[0]
    model.prepare_for_inference_(FairseqConfig())
    found = model(tokens)[0]
    assert isinstance(model.decoder.output_projection, int8.Linear8)
    weight, _ = torch.ops.quantized.linear_unpack(model.decoder.output_projection.packed)
    largest = weight.int_repr().int().abs().amax(dim=1)
    assert set(largest.tolist()) <= {2 ** (bits - 1) - 1, 2 ** (bits - 1)}  # a scale for each row
    model.prepare_for_inference_(FairseqConfig())  # changes nothing
    for layer in model.decoder.layers:  # projections of X in one product give the numbers of each
        assert layer.self_attn.fused_x_proj is not None
        layer.self_attn.fused_x_proj = None
    torch.testing.assert_close(model(tokens)[0], found, rtol=0, atol=1e-6)
    assert 0 < (found - expected).abs().max() < 0.06 * expected.abs().max()


# Difference of logits, relative to the largest, if a value tips to the next of 255 levels.
TOLERANCE = 2e-3
HAS_PRODUCT = {"onednn": int8.has_onednn_product(), "fbgemm": int8.has_fbgemm_product(), "dynamic": True}
PRODUCTS = [form.name for form in int8.LINEAR8_FORMS.forms if HAS_PRODUCT[form.name]]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("bias", [None, torch.randn(21)])
def test_an_output_depends_on_its_own_input_alone(product, bias):
    """Outputs are equal bit for bit beside zeros and inputs of any size."""
    sizes = torch.tensor([1e-6, 1.0, 0.0, 30.0, 1e4])
    x = torch.randn(3, 5, 16) * sizes[:, None]
    with int8.LINEAR8_FORMS.force(product) as taken:
        layer = int8.Linear8(torch.randn(21, 16), bias)
        found = layer(x)
        for i in range(3):
            for j in range(5):
                assert torch.equal(layer(x[i, j][None])[0], found[i, j])
    assert set(taken) == {product}
    assert torch.equal(found[:, 2], torch.zeros(3, 21) if bias is None else bias.expand(3, -1))


@pytest.mark.parametrize("shape", [(1, 16), (4, 40, 16)])
def test_all_products_are_the_same(shape):
    """The levels are the same, at ties too, so that products differ by the rounding of float32 alone."""
    weight, x = torch.randn(21, 16), torch.rand(*shape) * 2 - 1
    x.view(-1)[:16] = torch.tensor([-127.5, -126.5, -1.5, -0.5, 0.0, 0.5, 1.5, 127.5] * 2) * int8.STEP
    found = []
    for product in PRODUCTS:
        with int8.LINEAR8_FORMS.force(product) as taken:
            found.append(int8.Linear8(weight, None).multiply(x))
        assert taken == [product]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=4e-6)


@pytest.mark.parametrize("product", PRODUCTS)
def test_scores_do_not_depend_on_the_product(product):
    source, target = (batch(side) for side in example())
    found = []
    for form in (product, PRODUCTS[-1]):
        with int8.LINEAR8_FORMS.force(form) as taken:
            model = translation_model(torch.float32, int8=True)
            model.prepare_for_inference_(FairseqConfig())
            found.append(model(source, source.ne(1).sum(dim=1), target)[0])
        assert set(taken) == {form}
    assert (found[0] - found[1]).abs().max() < TOLERANCE * found[1].abs().max()


@pytest.mark.skipif(not all(HAS_PRODUCT.values()), reason="needs torch 2.3 or newer on an x86 CPU")
@pytest.mark.parametrize("vectors, expected", [(15, "fbgemm"), (16, "onednn")])
def test_the_rule_reads_the_cpu_and_the_number_of_vectors(vectors, expected, monkeypatch):
    with int8.LINEAR8_FORMS.force(None) as taken:
        monkeypatch.setattr(int8, "has_amx", lambda: False)
        int8.Linear8(torch.randn(21, 64), None)(torch.randn(1, 64, 64))
        monkeypatch.setattr(int8, "has_amx", lambda: True)
        int8.Linear8(torch.randn(21, 63), None)(torch.randn(64, 63))
        layer = int8.Linear8(torch.randn(21, 64), None)
        layer(torch.randn(vectors, 1, 64))
        layer.select(torch.tensor([3, 4]))(torch.randn(vectors, 64))
    assert taken == ["fbgemm", "fbgemm", expected, expected]


@pytest.mark.skipif(not int8.has_amx(), reason="needs a CPU with AMX")
@pytest.mark.parametrize("inputs, outputs", [(64, 21), (510, 100), (512, 2048)])
def test_with_amx_both_products_are_equal_bit_for_bit(inputs, outputs):
    layer, x = int8.Linear8(torch.randn(outputs, inputs), None), torch.randn(40, inputs)
    results = []
    for form in ("fbgemm", "onednn"):
        with int8.LINEAR8_FORMS.force(form):
            results.append(layer(x))
    assert torch.equal(*results)


VARIANTS = [{}, {"anchored_packed": True, "packed_lookup": 2, "diagonal_prior": True}]
VARIANTS += [{"cross_attention": "softmax", "causal_decay": True}]


@pytest.mark.parametrize("form", [None, *PRODUCTS])  # None: chosen by the number of vectors
@pytest.mark.parametrize("given", VARIANTS)
def test_scores_depend_neither_on_neighbours_nor_on_padding(given, form):
    source, target = example((9, 4, 6, 40), (5, 8, 1, 12))

    def logits(which, extra=0):
        tokens, read = (batch([side[i] for i in which], extra=extra) for side in (source, target))
        return model(tokens, tokens.ne(1).sum(dim=1), read)[0]

    with torch.no_grad(), int8.LINEAR8_FORMS.force(form):
        model = translation_model(torch.float32, int8=True, max_source_positions=99, **given)
        model.prepare_for_inference_(FairseqConfig())
        together = logits([0, 1, 2, 3])
        for i, tokens in enumerate(target):
            for alone in (logits([i]), logits([i], extra=3)):
                difference = (alone[0, : len(tokens)] - together[i, : len(tokens)]).abs().max()
                assert difference < TOLERANCE * together[i].abs().max()


@pytest.mark.parametrize("precision", ["--fp16", "--bf16", "--memory-efficient-bf16"])
@pytest.mark.parametrize("asked", [["--int8"], ["--model-overrides", "{'int8': True}"]])
def test_half_precision_beside_it_is_refused(asked, precision):
    def parse(*words):
        words = ["data", "--path", "p.pt", *words]
        return options.parse_args_and_arch(options.get_generation_parser(), words)

    with pytest.raises(InputError, match="--int8 and --[fb][pf]16 cannot be combined"):
        parse(*asked, precision)
    parse(precision)
    with pytest.raises(InputError, match="cannot be combined"):
        LunaModel.from_pretrained(".", int8=True, **{precision[2:].replace("-", "_"): True})


@pytest.mark.parametrize(
    "dtype, message",
    [
        (torch.float64, "int8 needs a float32 model on a CPU, got float64 on cpu"),
        (torch.float32, "no 8-bit products for this CPU: remove int8"),
    ],
)
def test_another_precision_or_a_cpu_without_such_products_is_refused(dtype, message, monkeypatch):
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["none"])
    with pytest.raises(InputError, match=message):
        int8.quantise(tiny_model(dtype))


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, "meta"])
def test_a_model_in_8_bits_is_neither_converted_nor_moved(to):
    layer = int8.Linear8(torch.eye(8), None)
    layer.to(torch.float32).to("cpu")
    with pytest.raises(
        InputError, match="int8 needs a float32 model on a CPU, got .*: remove int8, or leave"
    ):
        torch.nn.Sequential(layer).to(to)


@pytest.mark.parametrize("command", ["generation", "interactive_generation", "eval_lm"])
def test_fairseq_commands_take_it(command):
    parser = getattr(options, f"get_{command}_parser")()
    line = ["data", "--path", "p.pt", "--int8", "--model-overrides", "{'fix_projection_length': True}"]
    args = options.parse_args_and_arch(parser, line)
    assert args.cpu and args.model_overrides == "{'fix_projection_length': True, 'int8': True}"


ABSORBING = {"encoder_embed_dim": 60, "decoder_embed_dim": 60, "fix_projection_length": True}
FORMS = [{}, {"untie_luna_kv": True}, *VARIANTS[1:]]


@pytest.mark.parametrize("given", FORMS)
def test_every_size_of_a_batch_uses_the_same_form(given):
    model = translation_model(torch.float32, int8=True, max_source_positions=99, **ABSORBING, **given)
    model.prepare_for_inference_(FairseqConfig())
    source, target = (batch(side) for side in example((9,), (6,)))
    expected = decode(model, source, target)
    for size in (1, 2, 3, 64):
        for steps in (False, True):
            found = decode(model, source.repeat(size, 1), target.repeat(size, 1), steps)
            difference = (found - expected).abs().max()
            assert difference < TOLERANCE * expected.abs().max(), (size, steps)
