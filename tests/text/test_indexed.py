"""Encoded text is written bit for bit as fairseq-preprocess writes the same pieces."""

import json
from collections import Counter
from random import Random

import pytest
import sentencepiece

from fairseq import options
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from fairseq_cli import preprocess
from luna_fairseq.errors import InputError
from luna_fairseq.requirements import import_package
from luna_fairseq.text import encoders, indexed
from luna_fairseq.text.dictionaries import build_dictionary, build_text_dictionary
from luna_fairseq.text.joint_bpe import bpe_dictionary, count_words, learn_bpe
from luna_fairseq.text.merges import learn_merges

TEXT = [
    "the cat sat on the mat",
    "",
    "a b\u00a0c   d \u00e9t\u00e9 it's",
    "the <unk> </s> <s> mat",
    "",
    "a",
    "Der Hund läuft ‐ 12,5 %",
    "the cat sat on a mat again and again",
]
OTHER = ["the dog \u2603 sat", "", "\u4e2d the mat"]  # has characters that are unknown to the encoding


def sentencepiece_(folder):
    model = folder / "model"
    model.write_bytes(learn_bpe(TEXT, 60))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = lambda line: processor.encode(line, out_type=str)  # noqa: E731
    return encoders.sentencepiece_encoder(model), pieces, lambda counts: bpe_dictionary(model, counts)


def foreign(folder):
    _, *rest = sentencepiece_(folder)
    return (encoders.sentencepiece_line_encoder(folder / "model", 2), *rest)


def moses(folder):
    codes = folder / "codes"
    codes.write_bytes(learn_merges(TEXT, 12))
    bpe = import_package("subword_nmt.apply_bpe").BPE(codes.open(encoding="utf-8"))
    return (
        encoders.subword_nmt_encoder(codes),
        lambda line: bpe.segment_tokens(line.split()),
        build_text_dictionary,
    )


def words(folder):
    return encoders.words_encoder(), str.split, lambda counts: build_text_dictionary(counts, 2)


def gpt2(folder):
    symbols = sorted(bytes_to_unicode().values())
    (folder / "e.json").write_text(json.dumps({piece: n for n, piece in enumerate([*symbols, "th"])}))
    (folder / "v.bpe").write_text("#version\nt h\n")
    files = folder / "e.json", folder / "v.bpe"
    bpe = encoders.get_encoder(*map(str, files))
    dictionary = lambda counts: build_dictionary(encoders.gpt2_symbols(files[0]), counts)  # noqa: E731
    return encoders.gpt2_encoder(*files, 2), lambda line: list(map(str, bpe.encode(line))), dictionary


@pytest.mark.parametrize("encoding", [sentencepiece_, foreign, moses, words, gpt2])
@pytest.mark.parametrize("few", [False, True], ids=["at once", "in many batches"])
def test_data_equals_fairseqs_bit_for_bit(encoding, few, tmp_path, monkeypatch):
    if few:
        monkeypatch.setattr(encoders, "LINES", 2)
        monkeypatch.setattr(encoders, "WORDS", 3)
        monkeypatch.setattr(indexed, "SENTENCES", 3)
    encoder, pieces, make_dictionary = encoding(tmp_path)
    written = tmp_path / "written"
    written.mkdir()
    with indexed.encoded_texts(tmp_path / "scratch", ["train", "valid"]) as texts:
        for name, lines in (("train", TEXT), ("valid", OTHER)):
            for batch in encoder.encode(iter(lines)):
                texts[name].add(*batch)
        counts = encoders.count_pieces(encoder, [texts["train"]])
        assert counts == Counter(piece for line in TEXT for piece in pieces(line) if piece in encoder.pieces)
        dictionary = make_dictionary(counts)
        table = encoder.dictionary_indices(dictionary)
        for name, text in texts.items():
            text.write(written / name, table, dictionary)
        found = [dictionary.index(piece) for line in OTHER for piece in pieces(line)]
        assert texts["valid"].unknown(table, dictionary) == found.count(dictionary.unk())
        assert texts["valid"].longest == max(len(pieces(line)) for line in OTHER)
    assert not (tmp_path / "scratch").exists()

    dictionary.save(str(tmp_path / "dict.txt"))
    for name, lines in (("train", TEXT), ("valid", OTHER)):
        (tmp_path / name).write_text(
            "".join(" ".join(pieces(line)) + "\n" for line in lines), encoding="utf-8"
        )
    arguments = ["--only-source", "--srcdict", tmp_path / "dict.txt", "--destdir", tmp_path / "theirs"]
    arguments += ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    preprocess.main(options.get_preprocessing_parser().parse_args(list(map(str, arguments))))
    for name in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
        assert (written / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_a_large_vocabulary_uses_wider_integers(tmp_path):
    encoder = encoders.words_encoder()
    dictionary = Dictionary()
    for number in range(70000):
        dictionary.add_symbol(str(number))
    with indexed.encoded_texts(tmp_path / "scratch", ["a"]) as texts:
        for batch in encoder.encode(["69999 1", "5"]):
            texts["a"].add(*batch)
        texts["a"].write(tmp_path / "a", encoder.dictionary_indices(dictionary), dictionary)
    data = indexed.MMapIndexedDataset(str(tmp_path / "a"))
    assert [line.tolist() for line in data] == [[70003, 5, 2], [9, 2]]


def test_characters_of_special_symbols_are_learned():
    """The characters <, > and / occur only in text that looks like special symbols."""
    model = sentencepiece.SentencePieceProcessor(model_proto=learn_bpe(TEXT, 60))
    for line in TEXT:
        assert model.unk_id() not in model.encode(line)
        assert model.decode(model.encode(line)) == " ".join(line.split())


def test_too_many_unknown_tokens_are_refused():
    encoders.check_unknown({"valid": 2}, {"valid": 100}, 2.0)
    with pytest.raises(InputError, match=r"valid: 3 of 100 tokens unknown \(3 %\).*--max-unknown 3"):
        encoders.check_unknown({"valid": 3}, {"valid": 100}, 2.0)


def test_counting_words_keeps_frequent_words_and_all_characters():
    lines = [f"the cat {number} \u00e9{number}" for number in range(200)] + ["a dog"]
    exact, found = Counter(" ".join(lines).split()), count_words(lines, max_words=20)
    assert len(found) <= 40 and all(found[word] == exact[word] for word in ("the", "cat"))
    assert set().union(*found) == set().union(*exact)
    assert count_words(lines) == exact


def test_counting_words_samples_sentences_without_spaces():
    """Such a sentence occurs once, and all sentences together count as often as in the text."""
    draw = Random(3)
    words = ["".join(draw.choices("กขคงจฉชซ", k=4)) for _ in range(30)]
    sentences = ["".join(draw.choices(words, k=6)) for _ in range(2000)]
    lines = [f"{sentence} the w{number % 500}" for number, sentence in enumerate(sentences)] + ["ฮ" * 20]
    found = count_words(lines, max_words=200)
    sampled = {word: count for word, count in found.items() if len(word) == 24}
    assert 60 <= len(sampled) <= 150 and 1600 < sum(sampled.values()) < 2400
    assert (
        found["the"] == 2000 and sum(word.startswith("w") for word in found) >= 100 and "ฮ" in "".join(found)
    )
    exact, counts = Counter("".join(sentences)), Counter()
    for word, count in sampled.items():
        counts.update({letter: word.count(letter) * count for letter in word})
    assert all(0.6 < counts[letter] / exact[letter] < 1.6 for letter in exact)
    assert list(count_words(lines, max_words=200).items()) == list(found.items())
    assert count_words(lines) == Counter(" ".join(lines).split())
