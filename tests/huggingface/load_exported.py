"""Load exported folders in a process without fairseq and this package: ``load_exported.py FOLDER=CLASS ...``.

The file FOLDER.in contains the keyword arguments of a call, and under "generate" those of ``generate``. The
script writes the logits and the generated tokens to FOLDER.out. It also tests the methods that transformers
expects of every model.
"""

import sys
import tempfile

sys.modules["fairseq"] = sys.modules["luna_fairseq"] = None
import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def check_hooks(model, inputs, logits):
    """Check hidden states, attentions, gradient checkpointing, resized embeddings and bfloat16."""
    out = model(**inputs, output_hidden_states=True, output_attentions=True)
    if model.config.is_encoder_decoder:
        assert len(out.decoder_hidden_states) == model.config.decoder_layers + 1
        assert len(out.cross_attentions) == model.config.decoder_layers
    else:
        assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    with torch.no_grad():
        assert torch.equal(model(**inputs, return_dict=False)[0], logits)
    model.gradient_checkpointing_enable()
    model.train()
    model(**inputs)[0].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.eval()
    model.gradient_checkpointing_disable()
    if model.get_output_embeddings() is not None:
        size = model.config.vocab_size
        model.resize_token_embeddings(size + 7)
        resized = model(**inputs).logits
        assert resized.size(-1) == size + 7, resized.shape
        torch.testing.assert_close(resized[..., :size], logits, rtol=0, atol=1e-5)
        model.resize_token_embeddings(size)
    half = model.to(torch.bfloat16)(**inputs)[0]
    assert half.dtype == torch.bfloat16 and torch.isfinite(half).all()


def check_pipeline(model, tokenizer):
    """Check that a pipeline continues a padded batch of prompts like single prompts."""
    assert tokenizer.padding_side == "left"
    generate = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    prompts = ["w3 w4 w5", "w6"]
    options = {"max_new_tokens": 4, "min_new_tokens": 4}
    alone = [generate(prompt, do_sample=False, **options) for prompt in prompts]
    assert generate(prompts, batch_size=2, do_sample=False, **options) == alone
    for prompt, found in zip(prompts, generate(prompts, batch_size=2, do_sample=True, top_k=5, **options)):
        assert found[0]["generated_text"].startswith(prompt), found


def check_tokenizer(tokenizer, folder):
    """Check that a tokenizer that is saved again has the same vocabulary."""
    with tempfile.TemporaryDirectory() as again:
        tokenizer.save_pretrained(again)
        old, new = (Tokenizer.from_file(f"{one}/tokenizer.json").get_vocab() for one in (folder, again))
    assert old == new


def check_saved_again(model, auto, inputs, logits):
    """Check that a model that is saved again can be loaded with its code from the new folder."""
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        loaded = getattr(transformers, auto).from_pretrained(again, trust_remote_code=True).eval()
        with torch.no_grad():  # as for the logits: modes may differ by rounding
            assert torch.equal(loaded(**inputs).logits, logits)
        assert type(loaded).__module__ != type(model).__module__


def main(folder, auto):
    """Load an exported folder with a class of transformers, and check the model and its tokenizer."""
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert len(tokenizer) == model.config.vocab_size, (len(tokenizer), model.config.vocab_size)
    check_tokenizer(tokenizer, folder)
    given = torch.load(f"{folder}.in")
    generate = given.pop("generate", None)
    with torch.no_grad():
        found = {"logits": model(**given).logits}
    if generate is not None:
        found["generated"] = model.generate(**generate)
    if auto == "AutoModelForCausalLM":
        check_pipeline(model, tokenizer)
    check_saved_again(model, auto, given, found["logits"])
    check_hooks(model, given, found["logits"])
    torch.save(found, f"{folder}.out")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        main(*word.split("="))
