"""Plain text is refused if the dictionary contains subword pieces."""

import json
import tarfile
from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from omegaconf import OmegaConf
from tiny_luna import dictionary as tiny_dictionary

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning.preparation import load_tokenizer
from luna_fairseq.models import LunaLanguageModel, LunaMaskedLM, LunaModel
from luna_fairseq.models.generator_hub import GeneratorHub, LanguageModelHub
from luna_fairseq.models.masked_lm_hub import IdentityTokenizer, MaskedLMHub
from luna_fairseq.models.tokenizers import MosesText, MosesTextConfig, find_folders, find_tokenizer
from luna_fairseq.peers.models import PeerLanguageModel, PeerRoberta, PeerTransformer, RnnAttentionModel
from luna_fairseq.text.pieces import check_encoded, check_tokenizer, detect_encoding

PEERS = PeerTransformer, PeerLanguageModel, PeerRoberta, RnnAttentionModel
# "the cat", encoded.
ENCODED = {
    "sentencepiece": "\u2581the \u2581c at",
    "subword_nmt": "the c@@ at",
    "gpt2": "262 269 265",
    None: "the cat",
}


def dictionary(encoding):
    made = Dictionary()
    others = {"gpt2": [], None: ["a", "4"]}.get(encoding, ["a"])
    for piece in [*ENCODED[encoding].split(), *others, "<mask>", "madeupword0000"]:
        made.add_symbol(piece)
    return made


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_dictionary_tells_its_encoding(encoding):
    assert detect_encoding(dictionary(encoding)) == encoding
    check_encoded(ENCODED[encoding], dictionary(encoding))
    check_encoded("", dictionary(encoding))


@pytest.mark.parametrize(
    "encoding, text",
    # The last is a word that is a piece by chance.
    [("sentencepiece", "the cat"), ("subword_nmt", "the cat"), ("gpt2", "the cat"), ("sentencepiece", "a")],
)
def test_plain_text_is_refused_where_there_is_no_tokenizer(encoding, text):
    words = IdentityTokenizer(dictionary(encoding))
    with pytest.raises(InputError, match=f"pieces of {encoding}, but the text is plain. .* bpe='{encoding}'"):
        words.encode(text)
    assert words.encode(ENCODED[encoding]) == ENCODED[encoding]


@pytest.mark.parametrize("encoding, text", [("subword_nmt", "the c@@ \u00e9"), ("gpt2", "262 5 265")])
def test_encoded_text_may_have_unknown_pieces(encoding, text):
    check_encoded(text, dictionary(encoding))


def test_unknown_words_of_a_dictionary_of_words_are_unknown():
    assert IdentityTokenizer(dictionary(None)).encode("the dog") == "the dog"


def test_translating_and_sampling():
    hub = GeneratorHub.__new__(GeneratorHub)
    torch.nn.Module.__init__(hub)
    hub.bpe, hub.tokenizer, hub.src_dict = None, None, dictionary("sentencepiece")
    with pytest.raises(InputError, match="pieces of sentencepiece"):
        hub.encode("the cat")
    assert len(hub.encode(ENCODED["sentencepiece"])) == 4
    hub.tgt_dict = dictionary("subword_nmt")
    assert len(hub.encode_target(ENCODED["subword_nmt"])) == 4
    with pytest.raises(InputError, match="pieces of subword_nmt"):
        hub.encode_target("the cat")


def test_a_separator_in_a_text_separates_sentences():
    """The sentences are tokenized and detokenized one by one, because Moses would escape the separator."""
    hub = GeneratorHub.__new__(GeneratorHub)
    torch.nn.Module.__init__(hub)
    hub.bpe, hub.tokenizer = None, MosesText(MosesTextConfig(source_lang="en", target_lang="de"))
    hub.src_dict = hub.tgt_dict = Dictionary()
    for symbol in ("<sep>", "Oma", "Hund", "&apos;s", "&apos;", "s", "."):
        hub.src_dict.add_symbol(symbol)
    text = "Oma's Hund. <sep> Oma."
    assert hub.src_dict.string(hub.encode(text)) == "Oma &apos;s Hund . <sep> Oma ."
    assert hub.decode(hub.encode("Hund. <sep> Oma.")) == "Hund. <sep> Oma."
    target = hub.encode_target(text)  # by the rules of German
    assert hub.tgt_dict.string(target) == "Oma &apos; s Hund . <sep> Oma ."
    hub.src_dict = Dictionary()
    assert hub.src_dict.string(hub.encode("<sep>")) == "<unk> <unk> <unk>"


class Pieces:
    """Stand-in of a sentencepiece model with the given pieces."""

    def __init__(self, *pieces):
        self.pieces, self.sp = ["<unk>", "<s>", "</s>", *pieces], self
        self.id_to_piece, self.get_piece_size = self.pieces.__getitem__, self.pieces.__len__


@pytest.mark.parametrize("pieces, fits", [("\u2581the \u2581c at a", True), ("\u2581dog s a", False)])
@pytest.mark.parametrize("hub", [GeneratorHub, MaskedLMHub])
def test_a_tokenizer_of_another_dictionary_is_refused_by_every_hub(hub, pieces, fits, monkeypatch):
    """An outdated sentencepiece.bpe.model beside the checkpoint is an example."""
    source, target = dictionary("sentencepiece"), dictionary("sentencepiece")
    source.add_symbol("__en__")  # languages of multilingual models are no pieces
    monkeypatch.setattr("fairseq.data.encoders.build_bpe", lambda cfg: Pieces(*pieces.split()))
    task = Namespace(source_dictionary=source, target_dictionary=target, max_positions=lambda: None)
    bpe = {"sentencepiece_model": "/run/sentencepiece.bpe.model"}
    cfg = OmegaConf.create({"bpe": bpe, "tokenizer": None, "generation": {"replace_unk": None}})
    model = torch.nn.Linear(1, 1)
    model.decoder, model.max_positions = None, lambda *_: None
    model.prepare_for_inference_ = model.max_positions
    refusal = pytest.raises(InputError, match="/run/sentencepiece.bpe.model .* it lacks")
    with nullcontext() if fits else refusal:
        hub(cfg, task, [model])


def test_a_tokenizer_of_another_vocabulary_is_refused():
    ours, pieces = tiny_dictionary(100), ["<sep>", *(f"w{i}" for i in range(95))]
    others = [f"x{i}" for i in range(100)]
    ours.pad_to_multiple_(8)
    ours.add_symbol("<mask>")
    check_tokenizer(Pieces(*pieces), ours)
    check_tokenizer(Pieces(*pieces, "seldom"), ours)
    with pytest.raises(InputError, match="is not the one of the dictionary .*lacks 'w94', for example"):
        check_tokenizer(Pieces(*pieces[:-1]), ours)
    with pytest.raises(InputError, match=r"tokenizer \(199 pieces\) .* \(95 symbols\): it has many more pie"):
        check_tokenizer(Pieces(*pieces, *others), ours)
    check_tokenizer(None, ours)
    # For fairseq-interactive a dictionary may be of the frequent pieces alone, and have some symbols more.
    check_tokenizer(Pieces(*pieces[:-9], *others), ours, strict=False)
    with pytest.raises(InputError, match="lacks 'w85', for example"):
        check_tokenizer(Pieces(*pieces[:-10]), ours, strict=False)


def test_preparing_a_task_without_the_tokenizer(tmp_path):
    with pytest.raises(InputError, match="holds pieces of gpt2, but its folder has no tokenizer"):
        load_tokenizer(tmp_path, dictionary("gpt2"), 1)
    assert load_tokenizer(tmp_path, dictionary(None), 1)[1] == []


def test_tokenizers_are_found_by_their_files(tmp_path):
    assert find_tokenizer([tmp_path]) == {}
    (tmp_path / "vocab.bpe").write_text("#version\n", encoding="utf-8")
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0}), encoding="utf-8")
    assert find_tokenizer([tmp_path / "nowhere", tmp_path])["gpt2_vocab_bpe"] == str(tmp_path / "vocab.bpe")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    assert find_tokenizer([tmp_path])["bpe"] == "sentencepiece"


def test_where_a_tokenizer_is_looked_for(tmp_path):
    assert find_folders(tmp_path, ".") == [tmp_path, tmp_path / "."]
    assert find_folders(tmp_path, str(tmp_path))[1] == tmp_path
    assert len(find_folders("https://host/model.tar.gz", ".")) == 2


def test_a_checkpoint_file_in_place_of_its_folder(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"best.pt is a file: .*from_pretrained\('.*', 'best.pt', 'data'\)"):
        find_folders(tmp_path / "best.pt", "data")
    with tarfile.open(str(tmp_path / "model.tar.gz"), "w:gz") as archive:
        archive.add(str(tmp_path / "best.pt"), "best.pt")
    assert find_folders(tmp_path / "model.tar.gz", str(tmp_path))[1] == tmp_path


@pytest.mark.parametrize("positions", [(4, 9), 4])
def test_sentences_beyond_the_positions_are_named(positions):
    hub = GeneratorHub.__new__(LanguageModelHub if positions == 4 else GeneratorHub)
    torch.nn.Module.__init__(hub)
    hub.models, hub.task, hub.max_positions = [], None, positions
    hub.cfg = OmegaConf.create({"generation": {}})
    option = "--tokens-per-sample" if positions == 4 else "--max-source-positions"
    with pytest.raises(InputError, match=f"sentence 2 has 5 tokens, .* end at 4: .* larger {option}"):
        hub.generate([torch.ones(4), torch.ones(5)])
    with pytest.raises(InputError, match="sentence 1 has 5 tokens"):
        hub.generate(torch.ones(5))
    with pytest.raises(InputError, match="skip_invalid_size_inputs leaves sentences out of the result"):
        hub.generate([torch.ones(5)], skip_invalid_size_inputs=True)


@pytest.mark.parametrize("model", [LunaModel, LunaLanguageModel, LunaMaskedLM, *PEERS])
def test_folders_that_are_not_there(model, tmp_path):
    missing = str(tmp_path / "nowhere")
    with pytest.raises(InputError, match="nowhere does not exist: .* the folder of the checkpoint"):
        model.from_pretrained(missing, "checkpoint_best.pt", str(tmp_path))
    with pytest.raises(InputError, match="nowhere does not exist: .* the folder of the dictionaries"):
        model.from_pretrained(str(tmp_path), "checkpoint_best.pt", missing, bpe="characters")
