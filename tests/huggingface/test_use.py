"""Exported models in use: training, saving, compilation and sampling with transformers."""

import pytest
import tiny_masked_lm
import torch
from every_kind import VARIANTS, small_model
from tiny_luna import batch, sentences

transformers = pytest.importorskip("transformers")

from luna_fairseq.huggingface.conversion import CAUSAL_LM, MASKED_LM, TRANSLATION, convert, find_kind  # noqa: E402
from luna_fairseq.huggingface.modeling_luna_classifier import masked_mean  # noqa: E402

KINDS = [
    ("translation", "look-up diagonal decay", None),
    ("causal LM", "decay", None),
    ("masked LM", "local", None),
    ("masked LM", "tied", "attention_classification_head"),
    ("classifier", "mean", None),
]
every_kind = pytest.mark.parametrize(("kind", "variant", "head"), KINDS)
generating = pytest.mark.parametrize(("kind", "variant"), [("translation", "tied"), ("causal LM", "decay")])


def exported(kind, variant, head=None):
    if head is None and kind == "masked LM":
        model = tiny_masked_lm.tiny_model(torch.float32, (), **VARIANTS[kind][variant])
        dictionary = model.encoder.sentence_encoder.dictionary
    else:
        model, dictionary = small_model(kind, variant)
    return convert(model, find_kind(model, head), dictionary)


def examples(model):
    """Return a batch with labels: classes, or the tokens themselves."""
    tokens = batch(sentences((9, 6, 9, 4), 19))
    given = {"input_ids": tokens, "attention_mask": tokens.ne(1).long()}
    if "Classification" in type(model).__name__:
        return {**given, "labels": torch.tensor([0, 1, 2, 1])}
    return {**given, "labels": tokens.masked_fill(tokens.eq(1), -100)}


@every_kind
def test_trainer_fine_tunes_and_saves_a_model(kind, variant, head, tmp_path):
    pytest.importorskip("accelerate")
    model = exported(kind, variant, head)
    given = examples(model)
    rows = [{name: value[row] for name, value in given.items()} for row in range(4)]
    before = model(**given).loss.item()
    options = {"learning_rate": 1e-2, "max_steps": 4, "report_to": [], "use_cpu": True, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(str(tmp_path), **options)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.1
    trainer.save_model(str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "model.safetensors").is_file()
    kept = type(model).from_pretrained(str(tmp_path / "kept")).eval()
    assert torch.equal(kept(**given).logits, model.eval()(**given).logits)


@every_kind
def test_the_base_model_can_be_saved_and_loaded(kind, variant, head, tmp_path):
    model = exported(kind, variant, head)
    base = type(model.luna)
    model.luna.save_pretrained(str(tmp_path / "base"))
    model.save_pretrained(str(tmp_path / "whole"))
    given = {name: value for name, value in examples(model).items() if name != "labels"}
    if kind == "translation":
        given["decoder_input_ids"] = given["input_ids"].flip(0)
    for name in ("base", "whole"):
        found = base.from_pretrained(str(tmp_path / name)).eval()(**given)[0]
        torch.testing.assert_close(found, model.luna(**given)[0], rtol=0, atol=0)


def test_the_mean_over_masked_positions_is_zero():
    mask = torch.tensor([[True, True, False], [False, False, False]])
    means = masked_mean(torch.full((2, 3, 4), 6.0), mask)
    assert means.tolist() == [[6.0] * 4, [0.0] * 4]


@every_kind
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_the_same_when_checkpointed(kind, variant, head, reentrant):
    """Each layer is recomputed once, and each parameter has a gradient, which DDP requires."""
    gradients, runs = [], []
    for checkpointed in (False, True):
        model = exported(kind, variant, head).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        layers = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
        calls = []
        for layer in layers:
            layer.fc1.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(**examples(model)).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        runs.append(len(calls) / len(layers))
    assert runs == [1, 2]
    assert len(gradients[0]) > 20 and not [name for name, grad in gradients[0].items() if grad is None]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)


def replicate(module, factor):
    """Replicate a module like ``torch.nn.DataParallel``, but with parameters multiplied by a factor."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replicate(child, factor)
    for name, parameter in module._parameters.items():
        setattr(replica, name, None if parameter is None else parameter.detach() * factor)
    return replica


@every_kind
@pytest.mark.parametrize("checkpointed", [False, True])
def test_replicas_compute_with_their_own_parameters(kind, variant, head, checkpointed):
    model = exported(kind, variant, head).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    with torch.no_grad():
        actual = replicate(model, 1.5)(**examples(model)).loss
        for parameter in model.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(actual, model(**examples(model)).loss, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind, more",
    [
        (MASKED_LM, {"encoder_projected_attention_heads": 2}),
        (CAUSAL_LM, {"decoder_input_dim": 8, "decoder_output_dim": 8}),
    ],
)
def test_a_new_configuration_has_all_defaults(kind, more):
    model = kind.load_class()
    widths = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = model.config_class(vocab_size=11, **widths, **more)
    assert config.pad_token_id == 1 and config.projection_length == 128
    assert model(config)(torch.tensor([[4, 5]])).logits.shape == (1, 2, 11)


@pytest.mark.parametrize("kind", [TRANSLATION, CAUSAL_LM])
def test_transformers_4_40_lets_a_model_generate(kind):
    """This version looks for "GenerationMixin" in the name of the class that defines the method."""
    assert "GenerationMixin" not in str(kind.load_class().prepare_inputs_for_generation)


def test_missing_shared_embeddings_are_reported(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = exported("shared translation", "all")
    model.save_pretrained(str(tmp_path))
    path = str(tmp_path / "model.safetensors")
    kept = {name: value for name, value in safetensors.load_file(path).items() if "fc1" in name}
    safetensors.save_file(kept, path, metadata={"format": "pt"})
    _, found = type(model).from_pretrained(str(tmp_path), output_loading_info=True)
    assert "luna.decoder.embed_tokens.weight" in found["missing_keys"]


@pytest.mark.slow
@every_kind
def test_a_compiled_model(kind, variant, head):
    model = exported(kind, variant, head)
    given = examples(model)
    with torch.no_grad():
        found = torch.compile(model, backend="aot_eager")(**given).logits
        torch.testing.assert_close(found, model(**given).logits, rtol=0, atol=1e-5)


@generating
def test_samples_are_the_same_with_a_cache_and_other_padding(kind, variant):
    model = exported(kind, variant)
    rows = [[2, *row[:-1]] if kind == "causal LM" else row for row in sentences((9, 4, 6), 19)]
    texts = {}
    for cached in (True, False):
        for extra in (0, 2):
            ids = batch(rows, left=True, extra=extra)
            torch.manual_seed(3)
            options = {"num_beams": 1, "do_sample": True, "top_k": 5, "use_cache": cached}
            options = {**options, "max_new_tokens": 8, "suppress_tokens": [0, 1]}
            found = model.generate(ids, attention_mask=ids.ne(1).long(), **options)
            texts[cached, extra] = found[:, ids.size(1) :] if kind == "causal LM" else found
    assert all(torch.equal(text, texts[True, 0]) for text in texts.values())


@generating
@pytest.mark.parametrize("cached", [True, False])
def test_generate_returns_hidden_states(kind, variant, cached):
    model = exported(kind, variant)
    ids = batch(sentences((5, 5), 19))
    options = {"num_beams": 1, "max_new_tokens": 3, "min_new_tokens": 3, "use_cache": cached}
    found = model.generate(ids, output_hidden_states=True, return_dict_in_generate=True, **options)
    states = found.decoder_hidden_states if kind == "translation" else found.hidden_states
    assert [len(step) for step in states] == [model.config.decoder_layers + 1] * 3
