"""The translation model equals vectors of the authors' implementation."""

from argparse import Namespace

import pytest
import torch
from golden import DTYPES, assert_close, cast, load
from old_torch import without_memory
from tiny_luna import Task

from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.models.authors_checkpoint import translate_name
from luna_fairseq.models.luna import LunaModel

precisions = pytest.mark.parametrize("precision", ["f32", "f64"])


def golden_model(golden, state_dict, precision):
    args = Namespace(**golden["args"], **{name: None for name in golden["args_none"]})
    task = Task(*2 * [golden["dictionary"]["size"]])
    model = LunaModel.build_model(args, task).eval()
    model.load_state_dict({**state_dict}, strict=True)
    return model.to(DTYPES[precision]), task


def golden_case(case, precision):
    """Return the model with the authors' parameters, and the vectors of a case."""
    golden = load("luna_model_tied_dynproj")
    model, _ = golden_model(golden, golden["state_dict"], precision)
    return model, golden["cases"][case]


@precisions
@pytest.mark.parametrize("case", ["pad", "short", "nopad", "rightpad_src"])
def test_model(case, precision):
    model, vectors = golden_case(case, precision)
    inputs, expected = cast(vectors["inputs"], DTYPES[precision]), vectors[precision]
    outputs = expected["outputs"]
    encoder_out = model.encoder(inputs["src_tokens"], return_all_hiddens=True)
    logits, extra = model.decoder(inputs["prev_output_tokens"], encoder_out)

    real = inputs["src_tokens"].ne(1).t().unsqueeze(-1)
    found = encoder_out["encoder_out"][0]
    assert_close(found * real, outputs["encoder_out"] * real, precision, "encoder_out")
    assert_close(encoder_out["packed_out"][0], outputs["encoder_projected_out"], precision, "packed_out")
    for ours, theirs in zip(encoder_out["packed_states"][1:], outputs["encoder_states_px"]):
        assert_close(ours, theirs, precision, "packed_states")
    target_real = inputs["prev_output_tokens"].ne(1).unsqueeze(-1)
    assert_close(logits * target_real, outputs["logits"] * target_real, precision, "logits")

    lprobs = logits.log_softmax(dim=-1).view(-1, logits.size(-1))
    target = inputs["target"].view(-1)
    nll = -lprobs.gather(1, target[:, None]).squeeze(1)[target.ne(1)]
    assert abs(nll.sum().item() - expected["nll_loss"]) <= 1e-6 * expected["nll_loss"]
    smooth = -lprobs.sum(dim=-1)[target.ne(1)]
    loss = 0.9 * nll.sum() + 0.1 / lprobs.size(-1) * smooth.sum()  # as that fairseq smooths labels
    loss.backward()
    parameters = dict(model.named_parameters())
    for name, norm in expected["grad_norms"].items():
        name = translate_name(name.split("/", 1)[-1])
        if name == "decoder.layers.1.packed_layer_norm.weight" or name not in parameters:
            continue
        actual = parameters[name].grad.norm().item()
        norm = norm.item() if torch.is_tensor(norm) else norm
        assert actual == pytest.approx(norm, rel=2e-5 if precision == "f32" else 1e-9, abs=1e-6), name
    for name, gradient in expected.get("grads", {}).items():
        name = translate_name(name.split("/", 1)[-1])
        if name in parameters:
            scale = gradient.abs().max().clamp(min=1)
            assert_close(parameters[name].grad / scale, gradient / scale, precision, name)


@precisions
@pytest.mark.parametrize("case", ["pad", "short", "nopad"])
def test_step_by_step(case, precision):
    model, vectors = golden_case(case, precision)
    tokens = vectors["inputs"]["prev_output_tokens"]
    with torch.no_grad():
        encoder_out = model.encoder(vectors["inputs"]["src_tokens"])
        state, logits = {}, []
        for t in range(1, tokens.size(1) + 1):
            logits.append(model.decoder(tokens[:, :t], encoder_out, incremental_state=state)[0])
    real = tokens.ne(1).unsqueeze(-1)
    expected = vectors[precision]["outputs"]["logits"]
    assert_close(torch.cat(logits, dim=1) * real, expected * real, precision, "logits")


@pytest.mark.parametrize(
    "name, options",
    [
        ("greedy", {"beam_size": 1}),
        ("beam5", {"beam_size": 5}),
        ("beam4_lenpen06", {"beam_size": 4, "len_penalty": 0.6}),
        ("beam5_unnormalized", {"beam_size": 5, "normalize_scores": False}),
    ],
)
def test_beam_search(name, options):
    golden = load("luna_model_tied_dynproj")
    decoding = golden["decoding"]
    model, task = golden_model(golden, decoding["state_dict"], "f32")
    lengths = {"max_len_a": 0, "max_len_b": 20, "min_len": 1}
    generator = SequenceGenerator([model], task.target_dictionary, **lengths, **options)
    inputs = {name: decoding["inputs"][name] for name in ("src_tokens", "src_lengths", "prev_output_tokens")}
    hypotheses = generator.generate([model], {"net_input": inputs})
    for ours, theirs in zip(hypotheses, decoding[name]):
        assert ours[0]["tokens"].tolist() == theirs[0]["tokens"].tolist()
        for a, b in zip(ours, theirs):
            assert float(a["score"]) == pytest.approx(float(b["score"]), abs=2e-5)
        attention = ours[0]["attention"]
        assert attention.shape == (inputs["src_tokens"].size(1), len(ours[0]["tokens"]))
        torch.testing.assert_close(attention.sum(dim=0), torch.ones(attention.size(1)))


def test_dropped_parameters_are_those_without_gradient():
    golden = load("luna_model_tied_dynproj")
    model, _ = golden_model(golden, golden["state_dict"], "f32")
    ours = set(model.state_dict())
    missing = {name for name in golden["state_dict"] if translate_name(name) not in ours}
    unused = {name.split("/", 1)[1] for name in golden["cases"]["pad"]["f32"]["grads_none"]}
    buffers = {name for name in missing if name.endswith(("projected_positions", "_float_tensor"))}
    assert missing - buffers == unused


@pytest.mark.parametrize(
    "untied, length, constant",
    [(False, 16, 48_886_784), (False, 32, 48_894_976), (True, 16, 56_766_464), (True, 32, 56_774_656)],
)
def test_parameter_counts_of_wmt14(untied, length, constant):
    """The counts equal Table 4 of the paper.

    Only the norm of P in the last decoder layer is missing, because it is unused.
    """
    size = 40_544
    options = {"share_all_embeddings": True, "projection_length": length, "untie_luna_kv": untied}
    with without_memory():
        model = LunaModel.build_model(Namespace(**options), Task(size, size))
    count = sum(p.numel() for p in model.parameters())
    assert count == 512 * size + constant - 1024
