import pytest
import sentencepiece
from demo_corpus import draw_corpus, write_corpus

from fairseq.data import Dictionary, indexed_dataset
from luna_fairseq.text import joint_bpe
from luna_fairseq.text.indexed import EncodedText
from luna_fairseq.text.subword import SUBWORD_METHODS
from luna_fairseq.translation import make_shortlist, preparation, prepare_bitext
from luna_fairseq.translation.languages import find_language_pairs

MODEL = "sentencepiece.bpe.model"


@pytest.fixture(scope="module")
def corpus():
    return draw_corpus({"test": 10, "valid": 11, "train": 200}, seed=5)


@pytest.fixture
def text(tmp_path, corpus):
    write_corpus(corpus, tmp_path / "text")
    return tmp_path / "text"


@pytest.fixture
def prepare(text, tmp_path, capsys):
    def prepare(*more, vocab_size=200, out="out", test=True):
        argv = f"--source-lang en --target-lang de --vocab-size {vocab_size} --workers 1".split()
        argv += ["--trainpref", str(text / "train"), "--validpref", str(text / "valid")]
        argv += ["--testpref", str(text / "test")] if test else []
        status = prepare_bitext.main([*argv, "--destdir", str(tmp_path / out), *more])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return prepare


def read(path):
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def write(path, lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def vocabulary(folder):
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL))
    return [model.id_to_piece(index) for index in range(model.get_piece_size())]


def killed(*args):
    raise KeyboardInterrupt


def refuse(*args):
    raise AssertionError("this step is finished and must not be done again")


def text_of(folder, split, language, encoding="sentencepiece"):
    """Return the prepared data of a split as lines of words."""
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    data = indexed_dataset.make_dataset(str(folder / f"{split}.en-de.{language}"), "mmap")
    return [dictionary.string(tokens, encoding) for tokens in data]


def test_data_decodes_to_the_text(prepare, text, tmp_path):
    status, out, err = prepare()
    assert (status, err) == (0, "") and "unknown" not in out
    folder = tmp_path / "out"
    dictionary = Dictionary.load(str(folder / "dict.de.txt"))
    assert dictionary == Dictionary.load(str(folder / "dict.en.txt")) and len(dictionary) % 8 == 0
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            assert text_of(folder, split, language) == read(text / f"{split}.{language}")
    data = indexed_dataset.make_dataset(str(folder / "train.en-de.de"), "mmap")
    assert "train: 200 pairs, tokens: " in out and f"{data.sizes.sum() - 200:,} de" in out
    assert not list(folder.rglob("*.tmp"))


def test_shards_hold_the_pairs_in_turn(prepare, text, tmp_path):
    status, out, _ = prepare("--shards", "3")
    shards = [tmp_path / "out" / f"shard{number}" for number in range(3)]
    assert status == 0 and out.strip().endswith(":".join(map(str, shards)))
    for language in ("en", "de"):
        lines = read(text / f"train.{language}")
        assert [text_of(shard, "train", language) for shard in shards] == [lines[n::3] for n in range(3)]
        assert text_of(shards[0], "test", language) == read(text / f"test.{language}")
        folders = (tmp_path / "out", *shards)  # from_pretrained(.., "out") reads the dictionaries of "out"
        assert len({(folder / f"dict.{language}.txt").read_bytes() for folder in folders}) == 1
    assert prepare("--shards", "3")[1].count("finished before") == 2
    assert "200 training pairs are left for --shards 201" in prepare("--shards", "201")[2]


def test_unknown_characters_are_counted_and_refused_above_a_share(prepare, text):
    write(text / "valid.en", ["\u4e2d \u6587", *read(text / "valid.en")[1:]])
    _, out, _ = prepare("--max-unknown", "50")
    assert "valid.en: 2 of " in out and "tokens unknown" in out and "train.en" not in out
    for _ in range(2):  # also if the data exists already
        status, _, err = prepare("--max-unknown", "0.1")
        assert status == 1 and "valid.en: 2 of " in err and "--max-unknown" in err


def test_every_piece_of_the_model_is_in_the_dictionary(prepare, tmp_path):
    prepare(test=False)
    dictionary = Dictionary.load(str(tmp_path / "out" / "dict.en.txt"))
    pieces = vocabulary(tmp_path / "out")
    assert len(pieces) == 200
    assert all(dictionary.index(piece) != dictionary.unk() for piece in pieces if piece != "<unk>")


@pytest.mark.parametrize("options, steps", [((), 2), (("--subword", "moses"), 3)])
def test_two_runs_write_the_same_bytes(options, steps, prepare, tmp_path):
    prepare(*options, vocab_size=100, out="first")
    prepare(*options, "--workers", "2", vocab_size=100, out="second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert prepare(*options, vocab_size=100, out="second")[1].count("finished before") == steps


def test_finished_steps_are_not_done_again(prepare, tmp_path, monkeypatch):
    prepare()
    before = contents(tmp_path / "out")
    for name in ("_learn", "_encode"):
        monkeypatch.setattr(preparation.Preparation, name, refuse)
    status, out, _ = prepare()
    assert status == 0 and out.count("finished before") == 2 and "train: 200 pairs" in out
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["train.en-de.de.bin", "plain/valid.en", MODEL])
def test_a_lost_or_shortened_file_is_made_again(prepare, tmp_path, name):
    prepare()
    before = contents(tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes()[:-1])
    status, out, _ = prepare()
    assert status == 0 and out.count("finished before") == 1
    assert contents(tmp_path / "out") == before


def test_a_run_killed_while_encoding_goes_on(prepare, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(joint_bpe, "build_dictionary", killed)
        assert prepare()[0] == 130
    status, out, _ = prepare()
    assert status == 0 and "learn: finished before" in out and out.count("finished before") == 1
    prepare(out="fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_run_killed_while_writing_leaves_no_mixture(prepare, tmp_path, monkeypatch):
    """fairseq-train would train on the texts and the dictionary of two preparations."""
    prepare()
    with monkeypatch.context() as patch:
        patch.setattr(EncodedText, "write", killed)
        assert prepare(vocab_size=190)[0] == 130
    assert not [path for ending in ("bin", "idx") for path in (tmp_path / "out").glob(f"*.{ending}")]
    prepare(vocab_size=190)
    prepare(vocab_size=190, out="fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_other_text_and_other_options_are_done_again(prepare, text, tmp_path):
    prepare()
    prepare(vocab_size=210)
    assert len(vocabulary(tmp_path / "out")) == 210
    write(text / "test.de", ["Neu.", *read(text / "test.de")[1:]])
    _, out, _ = prepare(vocab_size=210)
    assert out.count("finished before") == 1
    assert text_of(tmp_path / "out", "test", "de")[0] == "Neu."


def test_white_space_and_odd_characters(prepare, text, tmp_path):
    odd = "  Der\u00a0\u00a0Hund\u2028heißt\tﬁdo \u3000½ Ａ naïve\u0301.\r"
    (text / "train.de").write_bytes("\n".join(["\ufeff" + odd, *read(text / "train.de")[1:]]).encode())
    assert prepare()[0] == 0
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out" / MODEL))
    plain = "Der Hund heißt ﬁdo ½ Ａ naïve\u0301."
    assert model.decode(model.encode(odd)) == model.decode(model.encode(plain)) == plain
    lines = text_of(tmp_path / "out", "train", "de")
    assert len(lines) == 200 and lines[0] == plain


def test_training_pairs_with_an_empty_side_are_dropped(prepare, text, tmp_path):
    english, german = read(text / "train.en"), read(text / "train.de")
    english[3], german[5], english[7], german[7] = "", " \t", "", ""
    write(text / "train.en", english)
    write(text / "train.de", german)
    status, out, _ = prepare()
    assert status == 0 and "train: 197 pairs" in out and "3 dropped" in out
    assert text_of(tmp_path / "out", "train", "de") == [german[n] for n in range(200) if n not in (3, 5, 7)]


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("valid.de", None, "valid.de does not exist"),
        ("test.en", lambda data: b"", "test.en is empty"),
        ("train.de", lambda data: data + b"x\n", "train.en has 200 lines and {text}/train.de has 201"),
        ("valid.en", lambda data: data.split(b"\n", 2)[2], "valid.en has 9 lines and {text}/valid.de has 11"),
        ("train.en", lambda data: data.replace(b"\n", b"\n\xff\xfe", 1), "train.en, line 2 is not UTF-8"),
        (
            "test.de",
            lambda data: b"x\n \n" + data.split(b"\n", 2)[2],
            "test.de, line 2 is empty. Remove this line from both files.\n",
        ),
        ("valid.de", lambda data: data.decode("utf-8").encode("utf-16-le"), "valid.de, line 1"),
        ("train.de", lambda data: b"\n" * 200, "train"),
    ],
)
def test_bad_text_is_one_line_before_any_work(prepare, text, tmp_path, name, damage, message):
    if damage is None:
        (text / name).unlink()
    else:
        (text / name).write_bytes(damage((text / name).read_bytes()))
    status, out, err = prepare()
    assert status == 1 and err.count("\n") == 1
    assert err.startswith("luna-prepare-bitext: error: ") and message.format(text=text) in err
    assert not (tmp_path / "out").exists()


def test_lines_that_are_empty_on_both_sides_may_separate_documents(prepare, text):
    for name in ("valid.en", "valid.de"):
        (text / name).write_bytes(b"x\n\n" + (text / name).read_bytes())
    _, _, err = prepare()
    assert "line 2 is empty. Remove this line from both files, or give --documents N" in err


@pytest.mark.parametrize("size, message", [(50000, "too large"), (9, "too small")])
def test_vocabulary_size_that_does_not_fit(prepare, size, message):
    status, _, err = prepare(vocab_size=size)
    assert status == 1 and err.count("\n") == 1 and f"--vocab-size {size} " in err and message in err
    assert size == 9 or prepare(vocab_size=int(err.split()[-1].rstrip(".")))[0] == 0


@pytest.mark.parametrize("name", ["dict.en.txt", "checksums.sha256"])
def test_a_folder_of_another_program_is_left_alone(name, prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine 1\n")
    status, _, err = prepare()
    assert status == 1 and name in err and err.count("\n") == 1
    assert (tmp_path / "out" / name).read_text() == "mine 1\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("folder", ["plain", "tokenised"])
@pytest.mark.parametrize("is_input", [True, False])
def test_text_of_the_user_is_not_overwritten(folder, is_input, prepare, text, tmp_path):
    """Text in DIR/plain or DIR/tokenised is refused as input, and as a file of another program."""
    destdir = tmp_path / "out"
    (destdir / folder).mkdir(parents=True)
    for path in sorted(text.glob("[!t]*" if folder == "plain" else "train.*")):
        (destdir / folder / path.name).write_bytes(path.read_bytes())
        if is_input:
            path.unlink()
            path.symlink_to(destdir / folder / path.name)
    before = contents(destdir)
    status, out, err = prepare("--subword", "moses", vocab_size=100)
    assert status == 1 and err.count("\n") == 1 and "finished" not in out
    assert ("Use another --destdir" if is_input else "belongs to another program") in err
    assert contents(destdir) == before and not (destdir / "prepare_bitext.json").exists()


def test_the_folder_of_tokens_may_hold_text_if_there_are_no_tokens(prepare, text, tmp_path):
    text.rename(tmp_path / "tokenised")
    text.symlink_to(tmp_path / "tokenised")
    assert prepare(out=".")[0] == 0


@pytest.mark.parametrize(
    "words, record, message",
    [(["--target-lang", "en"], None, "--target-lang"), ([], "{", "prepare_bitext.json")],
)
def test_what_else_cannot_be_done(words, record, message, prepare, tmp_path):
    if record:
        prepare()
        (tmp_path / "out" / "prepare_bitext.json").write_text(record)
    status, _, err = prepare(*words)
    assert status == 1 and message in err and err.count("\n") == 1


def test_moses_tokens_and_merges(prepare, text, tmp_path):
    odd = "Ein Mann & sein „Nord-Hund“\u2028heißt\tfido."
    write(text / "train.de", [odd, *read(text / "train.de")[1:]])
    status, out, err = prepare("--subword", "moses", vocab_size=100)
    assert (status, err) == (0, "") and "tokenise ..." in out and "train: 200 pairs" in out
    folder = tmp_path / "out"
    tokens = "Ein Mann &amp; sein &quot; Nord @-@ Hund &quot; heißt fido ."
    assert read(folder / "tokenised" / "train.de")[0] == tokens
    dictionary = Dictionary.load(str(folder / "dict.de.txt"))
    assert dictionary == Dictionary.load(str(folder / "dict.en.txt")) and len(dictionary) % 8 == 0
    assert text_of(folder, "train", "de", "subword_nmt") == read(folder / "tokenised" / "train.de")
    assert read(folder / "plain" / "test.de") == read(text / "test.de")
    assert len(read(folder / "bpe.codes")) == 100 + 1  # a version line, and merges


def test_more_merges_than_the_text_gives(prepare):
    status, _, err = prepare("--subword", "moses", vocab_size=100000)
    assert status == 1 and "--vocab-size 100000 is too large for this training text, which gives " in err


def test_long_and_unequal_pairs_are_dropped_from_training_text_only(prepare, text, tmp_path):
    pairs = list(zip(read(text / "train.en"), read(text / "train.de")))
    pairs[1] = ("No.", pairs[1][1] + " " + pairs[2][1])
    pairs[4] = (" ".join(pair[0] for pair in pairs[5:25]), " ".join(pair[1] for pair in pairs[5:25]))
    for language, lines in zip(("en", "de"), zip(*pairs)):
        write(text / f"train.{language}", lines)
    status, out, _ = prepare("--max-length", "250", "--max-ratio", "3")
    assert status == 0 and "train: 198 pairs" in out and "test: 10 pairs" in out
    assert "1 dropped (lengths in a ratio above 3)" in out and "1 dropped (more than 250 pieces)" in out
    assert len(text_of(tmp_path / "out", "train", "en")) == 198
    status, _, err = prepare("--max-length", "1", out="none")
    assert status == 1 and "leave no training pair" in err


@pytest.mark.parametrize("broken_off", [False, True])
def test_nothing_is_left_of_an_earlier_preparation(broken_off, prepare, tmp_path, monkeypatch):
    prepare()
    assert list((tmp_path / "out").glob("test.*"))
    if broken_off:
        with monkeypatch.context() as patch:
            patch.setattr(preparation, "write_checksums", killed)
            assert prepare(test=False, vocab_size=190)[0] == 130
    prepare(test=False, vocab_size=190)
    prepare(test=False, out="fresh", vocab_size=190)
    assert set(contents(tmp_path / "out")) == set(contents(tmp_path / "fresh"))


def test_control_characters_are_read_as_spaces_and_counted(prepare, text, tmp_path):
    write(text / "train.en", ["one\x01two\x7f \x92three\u2581four", *read(text / "train.en")[1:]])
    _, out, _ = prepare()
    assert "train: control characters or U+2581 in 1 lines were read as spaces" in out
    assert text_of(tmp_path / "out", "train", "en")[0] == "one two three four"
    symbols = Dictionary.load(str(tmp_path / "out" / "dict.en.txt")).symbols
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for symbol in symbols for c in symbol)


def test_a_sentence_that_no_preset_reads_is_named(prepare, text):
    write(text / "train.en", ["a " * 5000, *read(text / "train.en")[1:]])
    _, out, _ = prepare()
    (line,) = (line for line in out.splitlines() if "longest side" in line)
    assert line.startswith("train: the longest side has ") and "--max-source-positions" in line
    _, out, _ = prepare("--max-length", "1000")
    assert "longest side" not in out


def test_several_texts_are_named(prepare, text, tmp_path):
    _, out, _ = prepare("--validpref", f"{text}/valid,{text}/test", "--testpref", f"{text}/test,{text}/valid")
    assert "give fairseq-train the options --valid-subset valid,valid1" in out and "test1: 11 pairs" in out
    assert (tmp_path / "out" / "test1.en-de.de.idx").exists()


def test_the_command_names_all_routes():
    """The command repeats their names, because importing the methods takes seconds."""
    assert list(prepare_bitext.SUBWORD) == list(SUBWORD_METHODS)


@pytest.mark.parametrize("languages", [("en-GB", "de"), ("tok.en", "zh-Hans"), ("de", "x.de")])
def test_languages_with_hyphens_and_dots(languages, text, tmp_path, capsys):
    for path in text.iterdir():
        path.rename(path.with_suffix(f".{languages[path.suffix == '.de']}.new"))
    for path in text.iterdir():
        path.rename(path.with_suffix(""))
    words = ["-s", languages[0], "-t", languages[1], "--vocab-size", "200", "--workers", "1"]
    for split in ("train", "valid", "test"):
        words += [f"--{split}pref", str(text / split)]
    assert prepare_bitext.main([*words, "--destdir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"-s {languages[0]} -t {languages[1]}" in said
    assert said.startswith("learn") and all(f" {one}" in said.splitlines()[2] for one in languages)
    assert find_language_pairs(tmp_path / "out") == [languages]
    words = [str(tmp_path / "out"), "--output", str(tmp_path / "shortlist")]
    assert make_shortlist.main(words) == 0


@pytest.mark.parametrize("language", ["", "e n", "../en", "en,de"])
def test_a_language_that_cannot_name_a_file(language, prepare):
    status, _, error = prepare("--source-lang", language)
    assert status == 1 and repr(language) in error
