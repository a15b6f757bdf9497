"""What transformers' users do with a model of every kind: train it, keep it, compile it, sample from it."""

import pytest
import torch
from every_kind import small_model
from tiny_luna import batch, sentences

transformers = pytest.importorskip("transformers")

from luna_fairseq.huggingface.conversion import convert, kind_of  # noqa: E402

KINDS = [
    ("translation", "look-up diagonal decay", None),
    ("causal LM", "decay", None),
    ("masked LM", "local", None),
    ("masked LM", "tied", "attention_classification_head"),
    ("classifier", "mean", None),
]
every_kind = pytest.mark.parametrize(("kind", "variant", "head"), KINDS)


def exported(kind, variant, head=None):
    model, dictionary = small_model(kind, variant)
    return convert(model, kind_of(model, head), dictionary)


def examples(model):
    """A batch with what is to be learnt: classes, or the tokens themselves."""
    tokens = batch(sentences((9, 6, 9, 4), 19))
    given = {"input_ids": tokens, "attention_mask": tokens.ne(1).long()}
    if "Classification" in type(model).__name__:
        return {**given, "labels": torch.tensor([0, 1, 2, 1])}
    return {**given, "labels": tokens.masked_fill(tokens.eq(1), -100)}


@every_kind
def test_trainer_fine_tunes_and_keeps_it(kind, variant, head, tmp_path):
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
def test_the_base_is_a_model_of_its_own(kind, variant, head, tmp_path):
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


@every_kind
def test_gradients_are_the_same_when_checkpointed(kind, variant, head):
    gradients = []
    for checkpointed in (False, True):
        model = exported(kind, variant, head).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        model(**examples(model)).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 20
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)


@pytest.mark.slow
@every_kind
def test_the_compiled_forward(kind, variant, head):
    model = exported(kind, variant, head)
    given = examples(model)
    with torch.no_grad():
        found = torch.compile(model, backend="aot_eager")(**given).logits
        torch.testing.assert_close(found, model(**given).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "variant"), [("translation", "tied"), ("causal LM", "decay")])
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
