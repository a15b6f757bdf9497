"""Exported models against fairseq's, in this process, and loaded by several versions of transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_masked_lm import HEADS, VARIANTS, tiny_model

pytest.importorskip("transformers")

from luna_fairseq.errors import InputError  # noqa: E402
from luna_fairseq.huggingface.comparison import compare, outputs  # noqa: E402
from luna_fairseq.huggingface.conversion import MASKED_LM, convert, kind_of  # noqa: E402
from luna_fairseq.huggingface.export import write_model, write_tokenizer  # noqa: E402
from luna_fairseq.huggingface.tokenizer import build_tokenizer  # noqa: E402

NOISE = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}
LOCAL = {"anchored_packed": True, "local_parts": 3}


def dictionary_of(model):
    return model.encoder.sentence_encoder.dictionary


def loaded_again(model, kind, dictionary, folder):
    exported = convert(model, kind, dictionary)
    write_model(exported, folder)
    return type(exported).from_pretrained(str(folder)).eval()


@pytest.mark.parametrize("head", [None, *HEADS])
@pytest.mark.parametrize("variant", [*VARIANTS, "quantisation noise", "local"])
def test_masked_language_models_and_their_heads(variant, head, tmp_path):
    options = {**VARIANTS, "quantisation noise": NOISE, "local": LOCAL}[variant]
    model = tiny_model(torch.float32, HEADS, **options)
    kind = kind_of(model, head)
    exported = loaded_again(model, kind, dictionary_of(model), tmp_path)
    expected, found = outputs(model, exported, kind)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_what_a_call_may_be_given():
    model = tiny_model(torch.float32, (), **LOCAL)
    exported = convert(model, MASKED_LM, dictionary_of(model))
    tokens = torch.randint(4, 20, (3, 9), generator=torch.Generator().manual_seed(2))
    tokens[1, 4:], tokens[2, 1:] = 1, 1
    mask = tokens.ne(1)
    with torch.no_grad():
        expected, extra = model(tokens)
        out = exported(tokens, labels=tokens.masked_fill(~mask, -100), output_attentions=True)
        torch.testing.assert_close(out.packed, extra["packed_features"], rtol=0, atol=1e-5)
        torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(expected[mask], tokens[mask]))
        torch.testing.assert_close(out.attentions[0].sum(-1)[:, 0][mask], torch.ones(mask.sum()))
        places = (mask.cumsum(1) - 1).clamp(min=0)
        embeds = exported.get_input_embeddings()(tokens)
        for options in (
            {"input_ids": torch.where(mask, tokens, 7)},
            {"inputs_embeds": embeds, "position_ids": places},
        ):
            found = exported(**options, attention_mask=mask.long()).logits
            torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-5)
        moved = exported(tokens, position_ids=places + 1).logits
        assert not torch.allclose(moved[mask], expected[mask], atol=1e-3)
    with pytest.raises(ValueError, match="has 41 tokens, the model's positions end at 40"):
        exported(torch.full((1, 41), 5))
    with pytest.raises(ValueError, match="give input_ids or inputs_embeds"):
        exported()


def test_another_model_is_seen():
    model = tiny_model(torch.float32, ())
    exported = convert(model, MASKED_LM, dictionary_of(model))
    with torch.no_grad():
        exported.lm_head.layer_norm.weight.add_(1)
    with pytest.raises(InputError, match="the exported model differs"):
        compare(model, exported, MASKED_LM)


OLDER = {
    "4.40.2": "tokenizers==0.19.1 huggingface_hub==0.23.5",
    "4.57.6": "tokenizers==0.22.1 huggingface_hub==0.36.2",
}


@pytest.fixture(
    scope="module", params=["the installed", *(pytest.param(v, marks=pytest.mark.slow) for v in OLDER)]
)
def transformers_folder(request, tmp_path_factory):
    """A folder of a version of transformers to be put before all others; empty for the one that is
    installed."""
    folder = tmp_path_factory.mktemp("transformers")
    if request.param in OLDER:
        packages = [f"transformers=={request.param}", *OLDER[request.param].split()]
        line = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages]
        if subprocess.run(line, capture_output=True).returncode != 0:
            pytest.skip(f"transformers {request.param} cannot be installed here")
    return folder


def loaded_elsewhere(auto, folder, inputs, transformers_folder):
    """What ``load_exported.py`` finds, in a process without fairseq and this package."""
    torch.save(inputs, str(folder / "inputs.pt"))
    environment = {**os.environ, "PYTHONPATH": str(transformers_folder), "HF_HUB_OFFLINE": "1"}
    environment["HF_HOME"] = str(folder / "home")
    script = str(Path(__file__).with_name("load_exported.py"))
    names = [str(folder / name) for name in ("hf", "inputs.pt", "outputs.pt")]
    line = [sys.executable, script, auto, *names]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(names[-1])


@pytest.mark.parametrize("options", [{"encoder_normalize_before": True}, LOCAL], ids=["pre-norm", "anchored"])
def test_masked_lm_elsewhere(options, transformers_folder, tmp_path):
    model = tiny_model(torch.float32, (), **options)
    folder = tmp_path / "hf"
    folder.mkdir()
    write_model(convert(model, MASKED_LM, dictionary_of(model)), folder)
    write_tokenizer(build_tokenizer({}, dictionary_of(model), 40), folder)
    names = {path.name for path in folder.glob("*.py")}
    assert {"modeling_luna.py", "configuration_luna.py", "tokenization_luna.py"} < names
    assert not any("causal" in name for name in names)
    tokens = torch.randint(4, 20, (2, 9))
    found = loaded_elsewhere("AutoModelForMaskedLM", tmp_path, {"input_ids": tokens}, transformers_folder)
    with torch.no_grad():
        torch.testing.assert_close(found["logits"], model(tokens)[0], rtol=0, atol=1e-5)
