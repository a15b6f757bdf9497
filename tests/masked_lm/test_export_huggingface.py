"""The model and the tokenizer for transformers against fairseq's."""

import json
import os
import subprocess
import sys
from argparse import Namespace

import pytest
import sentencepiece
import torch
from tiny_masked_lm import HEADS, VARIANTS, tiny_model

from fairseq.data import Dictionary, encoders
from fairseq.models.roberta import RobertaHubInterface
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm import export_huggingface
from luna_fairseq.text.joint_bpe import bpe_dictionary, learn_bpe
from luna_fairseq.text.text_encoding import dictionary_of

pytest.importorskip("transformers")

from luna_fairseq.masked_lm.huggingface.tokenizer import build_tokenizer  # noqa: E402

TEXT = [
    "the cat sat on the mat , and the dog sat on the log .",
    "a cat is not a dog ; naïve cafés are rare !",
    "one two three four five six seven eight nine ten",
]
HARD = [
    *TEXT,
    "",
    "  two  spaces\u00a0, an \u3000 ideographic one ",
    "日本 x 日 本 catdog",
    "a\tb\x1cc",
    "<unk> < unk >",
    "ﬁ ①",
]


@pytest.mark.parametrize("heads", [(), HEADS[-1:]], ids=["no head", "head"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_output(variant, heads):
    model = tiny_model(torch.float32, heads, **VARIANTS[variant])
    dictionary = model.encoder.sentence_encoder.dictionary
    exported = export_huggingface.convert(model, dictionary)
    tokens = torch.randint(4, 20, (3, 9), generator=torch.Generator().manual_seed(2))
    tokens[1, 4:], tokens[2, 1:] = 1, 1
    mask = tokens.ne(1)
    with torch.no_grad():
        logits, extra = model(tokens)
        out = exported(tokens, labels=tokens.masked_fill(~mask, -100))
        torch.testing.assert_close(out.logits[mask], logits[mask], rtol=0, atol=1e-5)
        torch.testing.assert_close(out.packed, extra["packed_features"], rtol=0, atol=1e-5)
        masked = exported(torch.where(mask, tokens, 7), attention_mask=mask.long()).logits
        torch.testing.assert_close(masked[mask], logits[mask], rtol=0, atol=1e-5)
        loss = torch.nn.functional.cross_entropy(logits[mask], tokens[mask])
        torch.testing.assert_close(out.loss, loss)
    with pytest.raises(ValueError, match="has 41 tokens, the model's positions end at 40"):
        exported(torch.full((1, 41), 5))


class Hub(RobertaHubInterface):
    """fairseq's encode, without a model."""

    def __init__(self, bpe, dictionary):
        torch.nn.Module.__init__(self)
        self.bpe = bpe
        self.task = type("Task", (), {"source_dictionary": dictionary})


def encoded_alike(files, dictionary, bpe):
    dictionary.add_symbol("<mask>")
    tokenizer, hub = build_tokenizer(files, dictionary, 512), Hub(bpe, dictionary)
    for line in HARD:
        assert tokenizer(line).input_ids == hub.encode(line).tolist(), line
    assert tokenizer(*TEXT[:2]).input_ids == hub.encode(*TEXT[:2]).tolist()
    ids = tokenizer("a <mask> cat").input_ids
    assert (
        ids == hub.encode("a")[:-1].tolist() + [dictionary.index("<mask>")] + tokenizer(" cat").input_ids[1:]
    )
    return tokenizer


def test_sentencepiece(tmp_path):
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(learn_bpe(iter(TEXT * 3), 60))
    files = {"bpe": "sentencepiece", "sentencepiece_model": str(path)}
    dictionary = bpe_dictionary(
        sentencepiece.SentencePieceProcessor(model_file=str(path)), {"▁the": 5, "▁a": 9}
    )
    tokenizer = encoded_alike(files, dictionary, encoders.build_bpe(Namespace(**files)))
    assert tokenizer.decode(tokenizer(TEXT[1]).input_ids, skip_special_tokens=True) == TEXT[1]
    assert tokenizer(["a", "the cat"], padding=True).attention_mask[0][-1] == 0
    other = dictionary_of(["▁the", "<mask>"], {})
    with pytest.raises(InputError, match="the dictionary lacks .* of the tokenizer's pieces"):
        build_tokenizer(files, other, 512)


def test_another_kind_of_sentencepiece(tmp_path):
    prefix = tmp_path / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3), model_prefix=str(prefix), vocab_size=35, minloglevel=2
    )
    files = {"bpe": "sentencepiece", "sentencepiece_model": f"{prefix}.model"}
    dictionary = Dictionary()
    dictionary.add_symbol("<mask>")
    with pytest.raises(InputError, match="no byte-pair encoding"):
        build_tokenizer(files, dictionary, 512)


def test_gpt2(tmp_path):
    """Bytes, and three merges; the pieces' numbers are the dictionary's symbols."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    pieces = [*bytes_to_unicode().values(), "th", "the", "Ġthe", "<|endoftext|>"]
    (tmp_path / "encoder.json").write_text(json.dumps({p: n for n, p in enumerate(pieces)}), encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("#version\nt h\nth e\nĠ the\n", encoding="utf-8")
    files = {"bpe": "gpt2", "gpt2_encoder_json": str(tmp_path / "encoder.json")}
    files["gpt2_vocab_bpe"] = str(tmp_path / "vocab.bpe")
    dictionary = dictionary_of([str(n) for n in range(len(pieces))], {"258": 7})
    encoded_alike(files, dictionary, encoders.build_bpe(Namespace(**files)))


LOAD = """
import sys
sys.modules["fairseq"] = sys.modules["luna_fairseq"] = None
import torch
from transformers import AutoModelForMaskedLM
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
with torch.no_grad():
    torch.save(model(torch.load(sys.argv[2])).logits, sys.argv[3])
"""


@pytest.mark.skipif(sys.version_info < (3, 10), reason="older transformers copy direct imports alone")
@pytest.mark.parametrize("share", [False, True])
def test_the_exported_folder_needs_neither_fairseq_nor_this_package(share, tmp_path):
    options = {"anchored_packed": True, "local_parts": 3, "share_token_projections": share}
    model = tiny_model(torch.float32, (), **options)
    exported = export_huggingface.convert(model, model.encoder.sentence_encoder.dictionary)
    export_huggingface.write_model(exported, tmp_path / "hf")
    names = {path.name for path in (tmp_path / "hf").glob("*.py")}
    assert {"modeling_luna.py", "configuration_luna.py", "luna_modules_luna_attention.py"} < names
    assert not any("causal" in name for name in names)
    tokens = torch.randint(4, 20, (2, 9))
    torch.save(tokens, str(tmp_path / "tokens.pt"))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    line = [sys.executable, "-c", LOAD, *(str(tmp_path / name) for name in ("hf", "tokens.pt", "logits.pt"))]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, env=environment, cwd=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    with torch.no_grad():
        expected, _ = model(tokens)
    torch.testing.assert_close(torch.load(str(tmp_path / "logits.pt")), expected, rtol=0, atol=1e-5)


def test_a_dictionary_of_pieces_without_its_tokenizer_is_refused():
    dictionary = Dictionary()
    for piece in ("\u2581the", "\u2581c", "at", "<mask>"):
        dictionary.add_symbol(piece)
    with pytest.raises(InputError, match="holds pieces of sentencepiece, and its tokenizer is not there"):
        build_tokenizer({}, dictionary, 512)
