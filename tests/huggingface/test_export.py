"""Exported models compared with fairseq models, and loaded by several versions of transformers."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_kind import CASES, small_model
from tiny_luna import batch, sentences
from tiny_masked_lm import HEADS
from tiny_models import beam_search

pytest.importorskip("transformers")

from luna_fairseq.errors import InputError  # noqa: E402
from luna_fairseq.huggingface import shipped_code  # noqa: E402
from luna_fairseq.huggingface.comparison import check_logits, compute_logits  # noqa: E402
from luna_fairseq.huggingface.conversion import (  # noqa: E402
    CAUSAL_LM,
    MASKED_LM,
    TRANSLATION,
    convert,
    find_kind,
)
from luna_fairseq.huggingface.export import write_model, write_tokenizer  # noqa: E402
from luna_fairseq.huggingface.tokenizer import build_tokenizer, choose_template  # noqa: E402


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def converted(kind, variant):
    """Return a fairseq model and the exported model."""
    model, dictionary = small_model(kind, variant)
    return model, convert(model, find_kind(model), dictionary)


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_the_same_output_when_loaded_again(kind, variant, tmp_path):
    model, dictionary = small_model(kind, variant)
    for head in (None, *(HEADS if kind == "masked LM" else ())):
        found = find_kind(model, head)
        exported, folder = convert(model, found, dictionary), tmp_path / str(head)
        write_model(exported, folder)
        with torch.no_grad():
            expected, actual = compute_logits(
                model, type(exported).from_pretrained(str(folder)).eval(), found
            )
        assert_near(actual, expected)


@pytest.mark.parametrize(
    ("variant", "beam"),
    [("tied", 5), ("look-up diagonal decay", 5), ("untied pre-norm", 1)],
)
def test_the_same_translations(variant, beam):
    """Translations equal those of fairseq, with padding on either side, with and without a cache.

    Beams may differ if the length limit ends a sentence, because fairseq counts the probability of EOS.
    """
    model, exported = converted("translation", variant)
    sources = sentences((9, 4, 6, 2), 23)
    tokens = batch(sources)
    expected = [found[0]["tokens"].tolist() for found in beam_search(model, tokens, beam, max_len_b=12)]
    for left, cached in ((False, True), (True, True), (False, False)):
        ids = batch(sources, left=left)
        options = {"num_beams": beam, "max_new_tokens": 13, "use_cache": cached}
        written = exported.generate(ids, attention_mask=ids.ne(1).long(), **options)
        assert [[token for token in row[1:] if token != 1] for row in written.tolist()] == expected


def test_the_best_of_n_is_that_of_fairseq():
    """The best hypothesis equals that of fairseq.

    Lower ranks may be better than in fairseq, which keeps the first hypotheses that end.
    """
    model, exported = converted("translation", "tied")
    for owner, name in ((model.decoder, "output_projection"), (exported, "lm_head")):
        ending = torch.nn.Linear(12, 19)  # with a bias towards the end
        with torch.no_grad():
            ending.weight.copy_(getattr(owner, name).weight)
            ending.bias.zero_()[2] = 6
        setattr(owner, name, ending)
    tokens = batch(sentences([3 + number % 12 for number in range(20)], 23, 4))
    options = {"num_beams": 5, "num_return_sequences": 5, "max_length": 22}
    found = exported.generate(tokens, **options, return_dict_in_generate=True, output_scores=True)
    rows = [[token for token in row[1:] if token != 1] for row in found.sequences.tolist()]
    scores, differing = found.sequences_scores.view(-1, 5), 0
    for number, best in enumerate(beam_search(model, tokens, 5, max_len_b=20)):
        texts = [one["tokens"].tolist() for one in best]
        assert rows[5 * number] == texts[0]
        differing += rows[5 * number : 5 * number + 5] != texts
        theirs = torch.stack([one["score"] for one in best])
        assert (scores[number] >= theirs - 1e-5).all()
    assert differing > 0


def test_a_caller_overrides_the_limits_of_generate():
    """A caller can override each default, and a decoder prompt may end at once as in fairseq."""
    model, exported = converted("translation", "tied")
    tokens = batch(sentences((9, 4, 6), 23))
    generate = functools.partial(exported.generate, tokens)
    end = exported.config.eos_token_id
    for given in ({"max_length": 6}, {"max_new_tokens": 5}):
        found = generate(**given, min_length=6)
        assert found.size(1) == 6 and found[:, -1].eq(end).all()
        assert not generate(**given, min_length=6, forced_eos_token_id=None)[:, -1].eq(end).all()
    for given in ({"min_length": 20}, {"min_new_tokens": 19}):
        found = generate(**given, max_length=22)
        assert found.size(1) >= 20 and not found[:, 1:19].eq(end).any()
    assert not torch.equal(generate(num_beams=1, max_length=12), generate(max_length=12))
    with torch.no_grad():  # an end that is better than any word
        exported.luna.decoder.layers[-1].final_layer_norm.weight.zero_()
        exported.luna.decoder.layers[-1].final_layer_norm.bias.copy_(exported.lm_head.weight[end])
    assert generate().size(1) == 3
    prompt = torch.tensor([[end, 5, 6]] * 3)
    assert generate(decoder_input_ids=prompt).tolist() == [[end, 5, 6, end]] * 3


@pytest.mark.parametrize("variant", ["look-up sentence diagonal", "anchored softmax cross sentence diagonal"])
def test_the_cache_continues_the_count_of_sentences(variant):
    """The cache continues the count of sentences, also after hypotheses are reordered."""
    model, exported = converted("translation", variant)
    tokens = batch([[8, 4, 4, 15, 4, 9, 2], [13, 8, 4, 17, 2]], left=True)
    target = torch.tensor([[2, 5, 4, 7, 4, 9, 6], [2, 4, 5, 6, 7, 4, 8]])
    order = torch.tensor([1, 0])
    with torch.no_grad():
        expected = exported(tokens, decoder_input_ids=target).logits
        source = exported.get_encoder()(tokens)
        first = {"encoder_outputs": source, "use_cache": True}
        out = exported(decoder_input_ids=target[:, :3], **first)
        assert_near(out.logits, expected[:, :3])
        out.past_key_values.reorder_cache(order)
        source = type(source)(**{name: value[order] for name, value in source.items()})
        rest = target[order, 3:]
        for step in range(rest.size(1)):
            again = {"encoder_outputs": source, "past_key_values": out.past_key_values}
            out = exported(decoder_input_ids=rest[:, step : step + 1], **again)
            assert_near(out.logits[:, 0], expected[order, 3 + step])
        with pytest.raises(ValueError, match="inputs_embeds"):
            exported(inputs_embeds=torch.zeros(1, 2, model.encoder.embed_tokens.embedding_dim))


@pytest.mark.parametrize("variant", ["untied", "decay"])
def test_prompts_are_continued_alike_in_a_batch(variant):
    """Prompts padded on the left are continued like single prompts, and the cache does not grow."""
    _, exported = converted("causal LM", variant)
    prompts = [[2, *prompt[:-1]] for prompt in sentences((7, 3, 5), 23)]
    ids = batch(prompts, left=True)
    options = {"max_new_tokens": 9, "num_beams": 3, "do_sample": False, "eos_token_id": None}
    options["suppress_tokens"] = [0, 1]  # padding, which alone no mask would tell from a word
    together = exported.generate(ids, attention_mask=ids.ne(1).long(), **options)
    for prompt, row in zip(prompts, together.tolist()):
        alone = exported.generate(torch.tensor([prompt]), use_cache=False, **options)
        assert row[-9:] == alone[0, -9:].tolist()
    with torch.no_grad():
        sizes = []
        for length in (3, 60):
            cache = exported(torch.full((1, length), 5), use_cache=True).past_key_values
            sizes.append(sum(x.numel() for x in cache.state.layers[0] if x is not None))
    assert sizes[0] == sizes[1]


def test_arguments_of_a_call():
    model, exported = converted("masked LM", "local")
    tokens = torch.randint(4, 20, (3, 9), generator=torch.Generator().manual_seed(2))
    tokens[1, 4:], tokens[2, 1:] = 1, 1
    mask = tokens.ne(1)
    with torch.no_grad():
        expected, extra = model(tokens)
        out = exported(tokens, labels=tokens.masked_fill(~mask, -100), output_attentions=True)
        packed = exported.luna(tokens).packed
        assert_near(packed, extra["packed_features"])
        torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(expected[mask], tokens[mask]))
        torch.testing.assert_close(out.attentions[0].sum(-1)[:, 0][mask], torch.ones(mask.sum()))
        places = (mask.cumsum(1) - 1).clamp(min=0)
        embeds = exported.get_input_embeddings()(tokens)
        for options in (
            {"input_ids": torch.where(mask, tokens, 7)},
            {"inputs_embeds": embeds, "position_ids": places},
        ):
            found = exported(**options, attention_mask=mask.long()).logits
            assert_near(found[mask], expected[mask])
        moved = exported(tokens, position_ids=places + 1).logits
        assert not torch.allclose(moved[mask], expected[mask], atol=1e-3)
    with pytest.raises(ValueError, match="41 .* 40"):
        exported(torch.full((1, 41), 5))
    with pytest.raises(ValueError, match="input_ids .* inputs_embeds"):
        exported()


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="a device as a context needs torch 2.0 or later")
def test_initialization_of_a_model_created_on_the_meta_device():
    _, one = converted("translation", "look-up diagonal decay")
    expected = type(one)(one.config)
    with torch.device("meta"):
        exported = type(one)(one.config)
    exported.to_empty(device="cpu")
    with torch.no_grad():
        exported.apply(exported._init_weights)
    buffers = dict(expected.named_buffers())
    assert any(name.endswith(".start") for name in buffers)
    for name, value in exported.named_buffers():
        torch.testing.assert_close(value, buffers[name])


CACHED = {"use_cache": True}


@pytest.mark.parametrize(
    ("kind", "variant", "options"),
    [
        ("masked LM", "pre-norm", {}),
        ("masked LM", "local", {}),
        ("translation", "look-up diagonal decay", {}),
        ("translation", "look-up diagonal decay", CACHED),
        ("translation", "anchored softmax cross diagonal", CACHED),
        ("translation", "tied", CACHED),
        ("causal LM", "decay", {}),
        ("causal LM", "decay", CACHED),
    ],
)
def test_weights_are_used_in_the_forward_pass_of_their_module(kind, variant, options):
    """Offloading of accelerate needs this, because its hooks load the weights of one module at a time."""
    model, exported = converted(kind, variant)
    exported.forward = functools.partial(exported.forward, **options)
    found = find_kind(model)
    with torch.no_grad():
        _, expected = compute_logits(model, exported, found)
        for module in exported.modules():
            here = {name: value for name, value in module._parameters.items() if value is not None}
            away = {name: torch.nn.Parameter(value.to("meta")) for name, value in here.items()}
            module._parameters.update(away)
            module.register_forward_pre_hook(lambda m, _, here=here: m._parameters.update(here))
            module.register_forward_hook(lambda m, *_, away=away: m._parameters.update(away))
        assert torch.equal(compute_logits(model, exported, found)[1], expected)


def test_a_different_model_is_refused():
    model, exported = converted("masked LM", "tied")
    with torch.no_grad():
        exported.lm_head.layer_norm.weight.add_(1)
    with pytest.raises(InputError, match="differs"):
        check_logits(model, exported, MASKED_LM)


OLDER = {
    "4.40.2": "tokenizers==0.19.1 huggingface_hub==0.23.5",
    "4.46.3": "tokenizers==0.20.3 huggingface_hub==0.26.5",
    "4.51.3": "tokenizers==0.21.1 huggingface_hub==0.30.2",
    "4.57.6": "tokenizers==0.22.1 huggingface_hub==0.36.2",
}


@pytest.fixture(
    scope="module", params=["the installed", *(pytest.param(v, marks=pytest.mark.slow) for v in OLDER)]
)
def transformers_folder(request, tmp_path_factory):
    """Return the folder of a version of transformers, to be put first on the path of Python.

    The folder is empty for the installed version.
    """
    folder = tmp_path_factory.mktemp("transformers")
    if request.param in OLDER:
        packages = [f"transformers=={request.param}", *OLDER[request.param].split()]
        line = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages]
        if subprocess.run(line, capture_output=True).returncode != 0:
            pytest.skip(f"transformers {request.param} cannot be installed here")
    return folder


ELSEWHERE = [
    ("masked LM", "pre-norm"),
    ("masked LM", "local"),
    ("shared translation", "all"),
    ("translation", "look-up diagonal decay"),
    ("causal LM", "learned"),
    ("classifier", "mean"),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Export models to folders and compute their expected output.

    Returns:
        (kind, variant) -> folder, class that loads it, and expected output
    """
    parent, found = tmp_path_factory.mktemp("exported"), {}
    for number, (kind, variant) in enumerate(ELSEWHERE):
        model, dictionary = small_model(kind, variant)
        exported = convert(model, find_kind(model), dictionary)
        folder = parent / f"hf{number}"
        write_model(exported, folder)
        write_tokenizer(build_tokenizer({}, dictionary, 40, choose_template(exported.config), "left"), folder)
        tokens = torch.randint(4, 19, (2, 9), generator=torch.Generator().manual_seed(3))
        inputs = {"input_ids": tokens}
        if find_kind(model) is TRANSLATION:
            inputs["decoder_input_ids"] = tokens.flip(0)
        with torch.no_grad():
            outputs = {"logits": exported(**inputs).logits}
        if find_kind(model) in (TRANSLATION, CAUSAL_LM):
            inputs["generate"] = {"inputs": tokens, "max_new_tokens": 7, "num_beams": 3}
            outputs["generated"] = exported.generate(**inputs["generate"])
        torch.save(inputs, f"{folder}.in")
        found[kind, variant] = folder, find_kind(model).auto_class, outputs
    return found


def test_shipped_files_do_not_import_in_circles(expected):
    """transformers 4.46 and older follows relative imports recursively and would not end."""
    for folder, _, _ in expected.values():
        files = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
        left = {name: re.findall(r"^ *from \.(\w+) import", text, re.M) for name, text in files.items()}
        while left:
            free = {name for name, needed in left.items() if not left.keys() & set(needed)}
            assert free, f"in a circle, or above one: {sorted(left)}"
            left = {name: needed for name, needed in left.items() if name not in free}


@pytest.fixture(scope="module")
def loaded_elsewhere(expected, transformers_folder):
    """Run ``load_exported.py`` in a process without fairseq and this package."""
    there = str(transformers_folder)
    environment = {**os.environ, "PYTHONPATH": there, "HF_HUB_OFFLINE": "1", "HF_HOME": f"{there}/home"}
    script = str(Path(__file__).with_name("load_exported.py"))
    line = [sys.executable, script, *(f"{folder}={auto}" for folder, auto, _ in expected.values())]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=there)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.usefixtures("loaded_elsewhere")
@pytest.mark.parametrize(("kind", "variant"), ELSEWHERE)
def test_without_fairseq_and_this_package(kind, variant, expected):
    folder, _, outputs = expected[kind, variant]
    actual = torch.load(f"{folder}.out")
    for name, value in outputs.items():
        assert_near(actual[name], value)


def test_a_folder_has_few_files_and_what_its_kind_needs(expected):
    """No folder contains kernels, which would need Triton.

    Only models that generate contain a decoder.
    """
    for (kind, _), (folder, _, _) in expected.items():
        assert len(list(folder.iterdir())) <= 25
        code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
        assert "import triton" not in code
        assert ("class LunaCausalAttention" in code) == (kind not in ("masked LM", "classifier"))


def test_exported_code_contains_only_what_the_model_uses(expected):
    """A masked language model has neither naive functions nor the state of a decoder."""
    folder = expected["masked LM", "local"][0]
    code = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("luna_*.py")}
    assert "def window_attention" in code["luna_anchored.py"]
    for name in ("naive_window_attention", "naive_distances", "DecoderState"):
        assert not any(f"{word} {name}" in text for text in code.values() for word in ("def", "class"))


def write_package(folder, files):
    """Write a package luna_fairseq with the given files, as ``shipped_code`` reads it."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)


@pytest.mark.parametrize(
    ("second", "name", "message"),
    [
        ("F = 2\n", "F", "F .* luna_fairseq.ops.a.F .* luna_fairseq.ops.b.F"),
        ("import math as F\n\nG = F\n", "G", "F .* luna_fairseq.ops.a.F .* math"),
        ("from luna_fairseq.ops.a import F as G\n\nH = G\n", "H", "luna_fairseq.ops.b .* F as G"),
        ("def f():\n    import luna_fairseq.errors\n", "f", "luna_ops.py .* 'import luna_fairseq.errors'"),
    ],
)
def test_code_that_one_file_cannot_hold_is_refused(second, name, message, tmp_path, monkeypatch):
    model = (
        f"from luna_fairseq.ops.a import F as x\nfrom luna_fairseq.ops.b import {name} as y\n\nBOTH = x, y\n"
    )
    write_package(tmp_path, {"ops.a": "F = 1\n", "ops.b": second, "huggingface.modeling": model})
    monkeypatch.setattr(shipped_code, "_ROOT", tmp_path)
    with pytest.raises(ValueError, match=message):
        shipped_code.write_code("luna_fairseq.huggingface.modeling", tmp_path)
