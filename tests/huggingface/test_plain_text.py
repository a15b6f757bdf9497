"""Plain text is read and written alike by fairseq-interactive, the Python interface and exported folders."""

import copy
import pickle
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import tiny_luna
import torch
from demo_corpus import draw_corpus, write_corpus
from every_kind import ONE_LAYER
from forked import USER_DIR, run_module
from tiny_checkpoints import command, training_state

from fairseq.data import Dictionary, encoders
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel
from luna_fairseq.text.subword import SUBWORD_METHODS, whole_word_method
from luna_fairseq.translation import preparation, prepare_bitext

transformers = pytest.importorskip("transformers")
pytest.importorskip("sacremoses"), pytest.importorskip("subword_nmt")

TRUSTED = {"trust_remote_code": True}
# Punctuation, hyphens, quotes, characters that Moses escapes or normalises, white space, what is unknown.
HARD = [
    "Two men are sitting on a bench.",
    "The well-known (red) dog doesn't run; it's 3.5% faster!",
    "“A man”, he said – isn’t here … « never »",
    "  spaces\u00a0and\ttabs , AT&T <b> [x] | y  ",
    "naïve café 日本 ☃",
    "a",
]
GIVEN = {
    "sentencepiece": "--bpe sentencepiece --sentencepiece-model {folder}/sentencepiece.bpe.model",
    "moses": "--tokenizer luna_moses --bpe subword_nmt --bpe-codes {folder}/bpe.codes",
    "words": "",
}


@pytest.fixture(scope="module", params=[*SUBWORD_METHODS, "words"])
def trained(request, tmp_path_factory):
    """Return the kind of text, and a folder with prepared data and the checkpoint of a small model."""
    folder = tmp_path_factory.mktemp(request.param)
    write_corpus(draw_corpus({"valid": 4, "train": 150}, seed=5), folder / "text")
    for language in ("en", "de"):
        with (folder / "text" / f"train.{language}").open("a", encoding="utf-8") as file:
            file.writelines(" ".join(line.split()) + "\n" for line in HARD * 2)
    argv = ["-s", "en", "-t", "de", "--vocab-size", "150", "--max-unknown", "99", "--destdir", str(folder)]
    for split in ("train", "valid"):
        argv += [f"--{split}pref", str(folder / "text" / split)]
    args = prepare_bitext.build_parser().parse_args(argv)
    preparation.Preparation(args, SUBWORD_METHODS.get(request.param) or whole_word_method(1)).run()
    dictionaries = [Dictionary.load(str(folder / f"dict.{language}.txt")) for language in ("en", "de")]
    task = Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    model = tiny_luna.tiny_model(torch.float32, task=task, **ONE_LAYER)
    options, languages = {**tiny_luna.OPTIONS, **ONE_LAYER}, {"source_lang": "en", "target_lang": "de"}
    state = training_state("translation", "luna", options, folder, **languages)
    torch.save({**state, "model": model.state_dict()}, str(folder / "model.pt"))
    return request.param, folder


def test_plain_text_in_and_out(trained, tmp_path):
    kind, folder = trained
    run = run_module(
        "fairseq_cli.interactive",
        [folder, "--user-dir", Path(USER_DIR), "--path", folder / "model.pt", "-s en -t de --beam 1"]
        + ["--max-len-b 12 --buffer-size 6 --max-tokens 1000", GIVEN[kind].format(folder=folder)],
        stdin="\n".join(HARD) + "\n",
    )
    assert run.returncode == 0, run.stderr[-3000:]
    sources, translations = ({}, {})
    for line in run.stdout.splitlines():
        name, _, text = line.partition("\t")
        if name.startswith(("S-", "D-")):
            (sources if name[0] == "S" else translations)[int(name[2:])] = text
    expected = [translations[number].split("\t")[1] for number in range(len(HARD))]
    hub = LunaModel.from_pretrained(str(folder), "model.pt", str(folder))
    assert [hub.translate(line, beam=1, max_len_b=12) for line in HARD] == expected
    assert command("export", tmp_path / "hf", "--path", folder / "model.pt", "--data", folder) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"), **TRUSTED)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(tmp_path / "hf"), **TRUSTED).eval()
    tokenizer.save_pretrained(str(tmp_path / "again"))
    (tmp_path / "again" / "config.json").write_bytes((tmp_path / "hf" / "config.json").read_bytes())
    others = [
        transformers.AutoTokenizer.from_pretrained(str(tmp_path / "again"), **TRUSTED),
        copy.deepcopy(tokenizer),
        *([pickle.loads(pickle.dumps(tokenizer))] if type(tokenizer).__module__ in sys.modules else []),
    ]
    for one in (tokenizer, *others):
        given = one(HARD, padding=True, return_tensors="pt")
        for number, row in enumerate(given["input_ids"].tolist()):
            assert [token for token in row if token != 1] == hub.encode(HARD[number]).tolist()
            assert hub.src_dict.string(hub.encode(HARD[number])) == sources[number]
        written = model.generate(**given, num_beams=1, max_length=14)
        assert one.batch_decode(written, skip_special_tokens=True) == expected
    pair = tokenizer(HARD[0], text_target=HARD[0])
    target = hub.tgt_dict.encode_line(hub.apply_bpe(hub.tokenize(HARD[0])), add_if_not_exist=False)
    assert pair["labels"] == target.tolist()
    assert tokenizer(HARD[0])["input_ids"] == pair["input_ids"]


def test_decoding_restores_the_references(trained):
    """The exported tokenizer restores the text that Moses and subword-nmt split."""
    kind, folder = trained
    from luna_fairseq.huggingface.tokenizer import Template, build_tokenizer
    from luna_fairseq.models.tokenizers import find_text_pipeline

    dictionary = Dictionary.load(str(folder / "dict.de.txt"))
    files = find_text_pipeline([folder])
    tokenizer = build_tokenizer(files, dictionary, 99, Template("$A </s>", "$A $B"), languages=("en", "en"))
    text = [line for line in HARD[:2] if kind != "words"] or ["Two men are sitting on a bench."]
    assert [tokenizer.decode(tokenizer(line).input_ids, skip_special_tokens=True) for line in text] == text
    separator = dictionary.add_symbol("<sep>")
    documents = build_tokenizer(files, dictionary, 99, Template("$A", "$A $B"), languages=("en", "en"))
    assert documents.decode(documents(" <sep> ".join(text)).input_ids) == " <sep> ".join(text)
    untidy = [separator, *documents(text[0]).input_ids, separator, separator]
    assert documents.decode(untidy) == f"<sep> {text[0]} <sep> <sep>"
    if kind == "moses":
        same = encoders.build_tokenizer(Namespace(tokenizer="moses", source_lang="en", target_lang="de"))
        ours = encoders.build_tokenizer(Namespace(tokenizer="luna_moses", source_lang="en", target_lang="de"))
        assert [ours.encode(line) for line in HARD[:2]] == [same.encode(line) for line in HARD[:2]]
        assert ours.encode(HARD[2]).startswith("&quot; A man , &quot; he said - isn &apos;t")


def test_pieces_without_their_files_are_refused(trained, tmp_path, capsys):
    kind, folder = trained
    data = tmp_path / "data"
    data.mkdir()
    for language in ("en", "de"):
        (data / f"dict.{language}.txt").write_bytes((folder / f"dict.{language}.txt").read_bytes())
    (data / "model.pt").write_bytes((folder / "model.pt").read_bytes())
    status = command("export", tmp_path / "hf", "--path", data / "model.pt", "--data", data)
    if kind == "words":
        assert status == 0
        return
    names = {"sentencepiece": "sentencepiece.bpe.model", "moses": "bpe.codes"}
    said = capsys.readouterr().err
    assert status == 1 and names[kind] in said
    with pytest.raises(InputError, match=GIVEN[kind].split()[-3]):
        LunaModel.from_pretrained(str(data), "model.pt", str(data)).translate(HARD[0])


def test_missing_sacremoses_is_reported(monkeypatch):
    from luna_fairseq.huggingface.tokenization_luna_moses import LunaMosesTokenizer

    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ImportError, match="pip install sacremoses"):
        LunaMosesTokenizer(codes_file="bpe.codes", languages=["en", "de"])
