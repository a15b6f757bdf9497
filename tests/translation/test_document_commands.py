"""Documents from text to score: preparation in pieces, translation, and one output line per sentence."""

import json
import shutil
from functools import partial

import demo_corpus
import numpy as np
import pytest
from test_train_bitext import TINY

from fairseq.data import Dictionary, indexed_dataset
from fairseq.data.data_utils import post_process
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel
from luna_fairseq.text.documents import DocumentPiece, read_pieces, split_into_pieces
from luna_fairseq.translation import evaluate, score, train_bitext
from luna_fairseq.translation.document_output import (
    find_mismatched_pieces,
    read_sizes,
    write_sentences,
    write_single_sentences,
)
from luna_fairseq.translation.scores import Translations, document_scores, plain_scores

LIMIT = 70
SIZES = {"train": 60, "valid": 6, "test": 9}


@pytest.fixture(scope="module")
def trained(forked_commands, tmp_path_factory):
    """Folder and command line of a run of luna-train-bitext on documents of three sentences."""
    folder = tmp_path_factory.mktemp("documents")
    corpus = folder / "corpus"
    sizes = [word for split, number in SIZES.items() for word in (f"--{split}", str(number))]
    demo_corpus.main(["--destdir", str(corpus), *sizes])
    words = [
        "-s",
        "en",
        "-t",
        "de",
        "--recipe",
        "small_documents",
        "--average",
        "1",
        "--destdir",
        str(folder / "out"),
    ]
    for split in SIZES:
        words += [f"--{split}pref", str(corpus / split)]
        for language in ("en", "de"):
            path = corpus / f"{split}.{language}"
            lines = path.read_text(encoding="utf-8").splitlines()
            documents = ["\n".join(lines[start : start + 3]) + "\n" for start in range(0, len(lines), 3)]
            path.write_text("\n".join(documents), encoding="utf-8")
    # --milestones is omitted, because the recipe has another schedule.
    words += ["--vocab-size", "150", "--documents", str(LIMIT), "--", *TINY[:-2], "--max-epoch", "1"]
    assert train_bitext.main(words) == 0
    return folder / "out", corpus


def test_pieces_are_of_bounded_length_with_single_sentences_beside_them(trained):
    out, _ = trained
    dictionary = Dictionary.load(str(out / "data" / "dict.en.txt"))
    separator = dictionary.index("<sep>")
    assert separator != dictionary.unk() and len(dictionary) % 8 == 0
    counts = []
    for language in ("en", "de"):
        text = indexed_dataset.make_dataset(str(out / "data" / f"train.en-de.{language}"), "mmap")
        held = [int((tokens == separator).sum()) + 1 for tokens in text]
        assert all(len(tokens) - 1 <= LIMIT for tokens, number in zip(text, held) if number > 1)
        counts.append(held)
    joined = [number for number in counts[0] if number > 1]
    assert counts[0] == counts[1] and joined and counts[0].count(1) >= sum(joined)


def test_there_is_a_line_for_each_sentence_and_a_score_of_documents(trained):
    out, corpus = trained
    pieces = read_pieces(out / "data" / "plain" / "test.pieces")
    assert sum(piece.sentences for piece in pieces) == SIZES["test"]
    assert {piece.document for piece in pieces} == {0, 1, 2}
    assert len((out / "hypotheses.de").read_text(encoding="utf-8").splitlines()) == SIZES["test"]
    names = [score["name"] for score in json.loads((out / "scores.json").read_text(encoding="utf-8"))]
    assert names[:3] == ["s-BLEU", "d-BLEU", "chrF2"]
    hub = LunaModel.from_pretrained(str(out / "checkpoints"), "averaged.pt", str(out / "data"))
    sentences = (corpus / "test.en").read_text(encoding="utf-8").split("\n")[:3]
    assert hub.src_dict.string(hub.encode(" <sep> ".join(sentences))) == " <sep> ".join(
        hub.src_dict.string(hub.encode(sentence)) for sentence in sentences
    )
    translated = hub.translate_document(sentences, tokens=LIMIT)
    assert len(translated) == 3 and hub.translate_document(iter(sentences), tokens=LIMIT) == translated
    with pytest.raises(InputError, match="sentence 2"):
        hub.translate_document(["A man.", " "], tokens=LIMIT)
    hub.max_positions = (8, 8)
    with pytest.raises(InputError, match="the model reads 8"):
        hub.translate_document(sentences, tokens=LIMIT)


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_piece_has_a_token_at_least(tokens, trained):
    hub = LunaModel.from_pretrained(str(trained[0] / "checkpoints"), "averaged.pt", str(trained[0] / "data"))
    with pytest.raises(InputError, match=f"tokens .*got {tokens}"):
        hub.translate_document(["A man.", "A dog."], tokens=tokens)


def as_translated(hub, monkeypatch, lines):
    """Replace the translations of ``hub`` by the given lines of subword pieces."""
    rest = iter(lines)

    def generate(sources, **options):
        words = [next(rest) for _ in sources]
        encode = partial(hub.tgt_dict.encode_line, add_if_not_exist=False, append_eos=False)
        return [[{"tokens": encode(line)}] for line in words]

    monkeypatch.setattr(hub, "generate", generate)


@pytest.mark.parametrize(
    "single, expected",
    [
        ("\u2581a <sep> \u2581dog", "a dog"),
        ("\u2581a <sep> n", "a n"),
        ("<sep> \u2581a <sep> <sep>", "a"),
    ],
)
def test_a_separator_in_a_sentence_is_a_space(single, expected, trained, tmp_path, monkeypatch):
    """The hub and luna-evaluate split a translation into the same sentences."""
    hub = LunaModel.from_pretrained(str(trained[0] / "checkpoints"), "averaged.pt", str(trained[0] / "data"))
    monkeypatch.setattr(hub, "tgt_dict", Dictionary())
    for symbol in ("<sep>", "\u2581a", "\u2581dog", "n"):
        hub.tgt_dict.add_symbol(symbol)
    as_translated(hub, monkeypatch, ["\u2581dog", single, "\u2581dog"])
    assert hub.translate_document(["A man.", "A dog."], tokens=LIMIT) == [expected, "dog"]
    words = post_process(single, "sentencepiece")
    (tmp_path / "pieces.txt").write_text("S-0\ta<sep> b\nH-0\t-1\tdog\n", encoding="utf-8")
    write_sentences(tmp_path / "pieces.txt", [DocumentPiece(0, 2)], [words, "dog"], tmp_path / "lines.txt")
    found = (tmp_path / "lines.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[-1] for line in found if line.startswith("H")] == [expected, "dog"]


def test_a_document_is_translated_as_the_command_cuts_and_translates_it(trained, tmp_path):
    """Document pieces depend only on the source. The default maximum length also depends on the batch."""
    out, corpus = trained
    averaged = out / "checkpoints" / "averaged.pt"
    words = [
        "--path",
        str(averaged),
        "--results",
        str(tmp_path),
        "--",
        "--max-len-a",
        "0",
        "--max-len-b",
        "9",
    ]
    assert evaluate.main([str(out / "data"), *words]) == 0
    hub = LunaModel.from_pretrained(str(out / "checkpoints"), averaged.name, str(out / "data"))
    found = []
    for document in (corpus / "test.en").read_text(encoding="utf-8").strip().split("\n\n"):
        found += hub.translate_document(document.split("\n"), LIMIT, max_len_a=0, max_len_b=9)
    assert found == (tmp_path / "hypotheses.de").read_text(encoding="utf-8").splitlines()
    assert len(read_pieces(out / "data" / "plain" / "test.pieces")) < SIZES["test"]

    # A second start skips both translations, of the pieces and of single sentences.
    outputs = sorted(tmp_path.glob("*-generate-test-lenpen1.txt"))
    assert [path.name.split("-")[0] for path in outputs] == ["pieces", "singly"]
    before = [path.stat().st_mtime_ns for path in outputs]
    assert evaluate.main([str(out / "data"), *words]) == 0
    assert [path.stat().st_mtime_ns for path in outputs] == before


def test_an_output_is_bounded_by_its_source_unless_its_length_is_given(trained, monkeypatch):
    folders = str(trained[0] / "checkpoints"), "averaged.pt", str(trained[0] / "data")
    hub = LunaModel.from_pretrained(*folders)
    found = []
    build = hub.task.build_generator
    monkeypatch.setattr(
        hub.task, "build_generator", lambda *a, **k: found.append(build(*a, **k)) or found[-1]
    )
    hub.translate("A man.")
    hub.translate("A man.", max_len_b=9)
    hub.translate("A man.", min_len=3, beam=1)
    hub.cfg.generation.max_len_b = 7  # like from_pretrained(.., max_len_b=7)
    hub.translate("A man.")
    assert [(g.max_len_a, g.max_len_b) for g in found] == [(1.5, 20), (0, 9), (0, 200), (0, 7)]
    assert hub.translate([]) == hub.sample([]) == []


def test_references_do_not_decide_where_a_test_text_is_cut():
    sentences = [(np.arange(6), np.array([2, 2, 2])), (np.arange(12), np.array([1, 9, 2]))]
    for training, expected in ((False, [2, 1]), (True, [1, 1, 1])):
        found = [
            piece for piece, _ in split_into_pieces([sentences], [3], 6, 99, training) if piece is not None
        ]
        assert [piece.sentences for piece in found] == expected


def test_a_piece_longer_than_the_positions_is_refused_before_anything_is_translated(
    trained, tmp_path, capsys
):
    out, _ = trained
    words = ["--path", str(out / "checkpoints" / "averaged.pt"), "--results", str(tmp_path), "--quiet"]
    assert evaluate.main([str(out / "data"), *words, "--", "--max-source-positions", "8"]) == 1
    assert "the model reads 8" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.txt"))


def test_sentences_that_are_translated_again_have_a_source_alone(trained, tmp_path):
    languages, data, folder = ("en", "de"), tmp_path / "data", tmp_path / "singly"
    shutil.copytree(str(trained[0] / "data"), str(data))
    (data / "dict.txt").touch()  # of a language model
    write_single_sentences(data, "test", languages, [0], folder)
    source, target = (read_sizes(folder, "test", languages, language) for language in languages)
    assert source.min() > 1 and not len(target) and (folder / "dict.txt").is_file()


def test_another_number_of_sentences_shifts_no_line(tmp_path):
    pieces = [DocumentPiece(0, 2), DocumentPiece(0, 1), DocumentPiece(1, 2)]
    generated = tmp_path / "generate.txt"
    lines = ["S-2\te<sep> f", "T-2\tE<sep> F", "H-2\t-1\tE<sep> F", "S-0\ta<sep> b", "T-0\tA<sep> B"]
    lines += ["H-0\t-2\tA B", "S-1\tc", "T-1\tC", "H-1\t-3\tC"]
    generated.write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert find_mismatched_pieces(generated, pieces) == [0]
    write_sentences(generated, pieces, ["X", "Y"], tmp_path / "lines.txt")
    found = [line.split("\t") for line in (tmp_path / "lines.txt").read_text().splitlines()]
    for kind, expected in (("S", "abcef"), ("T", "ABCEF"), ("H", "XYCEF")):
        assert [line[-1] for line in found if line[0].startswith(kind)] == list(expected)


def test_bleu_of_documents_is_that_of_their_joined_lines():
    pieces = [DocumentPiece(0, 2), DocumentPiece(0, 1), DocumentPiece(1, 1)]
    references = ["a b c d", "e f g h", "i j k l", "m n o p q"]
    text = Translations(["a b c d e", "f g h", "i j k l", "m n o p x"], references)
    sentences = plain_scores(text, "none")[0]
    of_sentences, of_documents = document_scores(text, pieces, sentences, "none")
    assert of_sentences.name == "s-BLEU" and of_sentences.value == sentences.value < of_documents.value
    assert of_documents.signature.endswith("documents:2")
    with pytest.raises(InputError, match="4 sentences .*3 lines"):
        document_scores(Translations(references[:3], references[:3]), pieces, sentences, "none")


def test_pieces_are_not_scored_as_sentences(tmp_path, capsys):
    files = {"plain.de": "a b\nc\n", "test.pieces": "0\t2\n", "pieces.txt": "H-0\t-1\ta b <sep> c\n"}
    files["sentences.txt"] = "H-0\t-\ta b\nH-1\t-\tc\n"
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    words = ["--reference", str(tmp_path / "plain.de"), "--documents", str(tmp_path / "test.pieces")]
    assert score.main([str(tmp_path / "sentences.txt"), *words]) == 0
    assert "d-BLEU = " in capsys.readouterr().out
    assert score.main([str(tmp_path / "pieces.txt"), *words]) == 1
    assert "pieces.txt" in capsys.readouterr().err


def test_pieces_of_numbers():
    sides = [(np.arange(9), np.array([2, 3, 4])), (np.arange(5), np.array([1, 1, 3]))]
    found = list(split_into_pieces([sides], [3], 6, 99, training=True))
    assert [piece for piece, _ in found] == [DocumentPiece(0, 2), None, None, DocumentPiece(0, 1)]
    assert [side.tolist() for side in found[0][1]] == [[0, 1, 99, 2, 3, 4], [0, 99, 1]]


@pytest.mark.parametrize(
    "content",
    [None, "1\n", "1 2\n"],
)
def test_a_file_of_pieces_that_is_none(content, tmp_path):
    if content is not None:
        (tmp_path / "test.pieces").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="test.pieces"):
        read_pieces(tmp_path / "test.pieces")
