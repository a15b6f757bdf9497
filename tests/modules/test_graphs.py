"""Test that training does not wait for the device, and that modules compile and export for all lengths."""

import pytest
import torch
from tiny_luna import VARIANTS, assert_close, example, tiny_model
from tiny_luna import batch as tiny_batch

from luna_fairseq.modules import (
    DecoderOptions,
    EncoderOptions,
    LunaAttention,
    LunaCausalAttention,
    LunaDecoder,
    LunaEncoder,
    Source,
    batch,
)
from luna_fairseq.modules.luna_layer import Shared
from luna_fairseq.modules.memory import flatten_tensors

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

SIZES = {"embed_dim": 12, "ffn_embed_dim": 20, "num_layers": 2, "num_heads": 3, "projection_length": 5}
OPTIONS = {"plain": {}, "untied pre-norm": {"untie_kv": True, "normalize_before": True}}
options = pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS)


def model(**chosen):
    torch.manual_seed(0)
    embed = torch.nn.Embedding(30, 12, padding_idx=1)
    stacks = (kind(build(**SIZES, **chosen), embed) for kind, build in PARTS)
    return [stack.double() for stack in stacks]


PARTS = ((LunaEncoder, EncoderOptions), (LunaDecoder, DecoderOptions))


def tokens(lengths, longest, seed=0):
    found = torch.randint(2, 30, (len(lengths), longest), generator=torch.Generator().manual_seed(seed))
    return found.masked_fill(torch.arange(longest) >= torch.tensor(lengths)[:, None], 1)


def run(stacks, source, target):
    encoder, decoder = stacks
    return decoder(target, decoder.read(encoder(source)))[0].x


def fail_on_reading_values():
    """Context manager that raises an error if the values of a tensor are read."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class FailOnReadingValues(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert "_local_scalar_dense" not in str(function) and "is_nonzero" not in str(function), function
            return function(*args, **(kwargs or {}))

    return FailOnReadingValues()


has_modes = pytest.mark.skipif(TORCH < (2, 0), reason="needs torch's dispatch modes")


@has_modes
@options
def test_a_training_step_reads_no_values(chosen, monkeypatch):
    """On a GPU, reading a value waits for all earlier work. Masks are then passed on without looking."""
    stacks, source, target = model(**chosen), tokens([9, 4, 3], 11), tokens([6, 2, 5], 6)
    expected = run(stacks, source, target)
    with pytest.raises(AssertionError), fail_on_reading_values():
        run(stacks, source, target)  # on a CPU, reading values costs nothing
    monkeypatch.setattr(batch, "can_branch_on_values", lambda x: False)
    with fail_on_reading_values():
        found = run(stacks, source, target)
        found.sum().backward()
    real = target.ne(1)
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-12)


@has_modes
@pytest.mark.parametrize(
    "variant", ["tied", "fixed length", "anchored", "diagonal", "local parts", "decay", "softmax cross"]
)
def test_a_forward_pass_in_fairseq_reads_no_values(variant, monkeypatch):
    stacks = tiny_model(**VARIANTS[variant]).train()
    source, target = (tiny_batch(x) for x in example())
    expected, _ = stacks(source, None, target)
    monkeypatch.setattr(batch, "can_branch_on_values", lambda x: False)
    with fail_on_reading_values():
        found, _ = stacks(source, None, target)
    assert_close(found[target.ne(1)], expected[target.ne(1)])


@pytest.mark.skipif(TORCH < (2, 5), reason="needs torch 2.5")
@options
def test_layers_are_one_graph(chosen):
    torch._dynamo.reset()
    encoder, decoder = model(**chosen)
    x, packed, context = (torch.randn(n, 3, 12, dtype=torch.float64) for n in (6, 5, 9))
    source = Source(tokens([9, 4, 3], 9).eq(1), tokens([5, 4, 3], 5).eq(1))
    inner = Source(source.padding_mask[:, :6], source.packed_padding_mask)
    mask = tokens([6, 2, 5], 6).eq(1)
    layer = decoder.layers[0]
    _, memory = layer.read(packed, context, source)
    calls = (
        (encoder.layers[0].forward, (x, packed, inner)),
        (layer.read, (packed, context, source)),
        (layer.forward, (x, memory, None, Shared(source, mask))),
    )
    for function, inputs in calls:
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        found, expected = (flatten_tensors(call(*inputs))[0] for call in (compiled, function))
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other)


@pytest.mark.skipif(TORCH < (2, 7), reason="needs torch 2.7, which says that it exports")
@pytest.mark.parametrize(
    "strict", [False, pytest.param(True, marks=pytest.mark.skipif(TORCH < (2, 8), reason="needs torch 2.8"))]
)
def test_attention_exported_with_few_tokens_is_for_any_number(strict):
    attention = LunaAttention(16, 2).double().eval()
    query, packed = torch.randn(6, 2, 16).double(), torch.randn(4, 2, 16).double()
    few, many = torch.randn(50, 2, 16).double(), torch.randn(300, 2, 16).double()
    shapes = (None, None, {0: torch.export.Dim("S", min=2, max=900)})
    program = torch.export.export(attention, (query, packed, few), dynamic_shapes=shapes, strict=strict)
    found, expected = program.module()(query, packed, many), attention(query, packed, many)
    torch.testing.assert_close(found[:2], expected[:2])


@pytest.mark.skipif(TORCH < (2, 7), reason="needs torch 2.7, which says that it exports")
@options
def test_the_encoder_and_a_decoding_step_are_exported_for_all_lengths(chosen):
    encoder, decoder = (stack.eval() for stack in model(**chosen))
    dim = torch.export.Dim.AUTO
    example, other = tokens([9, 4, 3], 11), tokens([17, 2], 17)
    program = torch.export.export(encoder, (example,), dynamic_shapes=({0: dim, 1: dim},), strict=False)
    encoded = encoder(other)
    found = program.module()(other)
    rows = encoded.packed.size(0)
    real = other.ne(1).t()
    torch.testing.assert_close(found.x[real], encoded.x[real])
    torch.testing.assert_close(found.packed[:rows, 0], encoded.packed[:, 0])

    class Step(torch.nn.Module):
        """Module that maps one token and a decoder state to output features and the next state."""

        def __init__(self):
            super().__init__()
            self.decoder = decoder

        def forward(self, token, memory, state):
            output, state = self.decoder(token, memory, state)
            return output.x, state.layers, state.count

    target, memory = tokens([4, 4], 4), decoder.read(encoded)
    _, state = decoder(target[:, :3], memory, keep_state=True)
    inputs = target[:, 3:], memory, state
    program = torch.export.export(Step(), inputs, strict=False)
    for one, expected in zip(program.module()(*inputs)[0], decoder(target, memory)[0].x[:, 3:]):
        torch.testing.assert_close(one, expected)


@pytest.mark.skipif(TORCH < (2, 1), reason="needs torch 2.1, which has shapes of all operations")
@pytest.mark.parametrize("backend", ["naive", "chunk", "parallel"])
def test_shapes_are_computed_on_the_device_meta(backend):
    """This device has no autocast to disable."""
    attention = LunaCausalAttention(12, 3, backend=backend).to("meta")
    x, packed = torch.empty(140, 2, 12, device="meta"), torch.empty(5, 2, 12, device="meta")
    memory = attention.read(packed)
    whole, _ = attention(x, memory)
    whole.sum().backward()
    _, state = attention(x[:9], memory, keep_state=True)
    step, _ = attention(x[9:10], memory, state)
    assert whole.shape == x.shape and step.shape == (1, 2, 12)
    assert attention.out_proj.weight.grad.device.type == "meta"


@pytest.mark.skipif(TORCH < (2, 1), reason="needs torch 2.1, which has shapes of all operations")
def test_a_model_computes_shapes_on_the_device_meta():
    stacks = [stack.to("meta") for stack in model()]
    assert run(stacks, tokens([9, 4], 9).to("meta"), tokens([6, 2], 6).to("meta")).shape == (2, 6, 12)
