"""A tiny causal language model of contiguous text with fairseq's commands."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import plugin, refused, succeed
from copying import ADAM
from saved_training import assert_same_training, load

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaLanguageModel
from luna_fairseq.models.stream import Stream

MODEL = "--decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 48 --decoder-attention-heads 4"
TRAIN = f"--task streaming_lm -a luna_lm {MODEL} {ADAM} --projection-length 8 --causal-decay --dropout 0.1"
TRAIN += (
    " --batch-size 4 --segment-length 16 --bptt-segments 1 --no-epoch-checkpoints --save-interval-updates 3"
)
LOSS = re.compile(r"Loss \(base 2\): ([\d.]+)")


@pytest.fixture(scope="module")
def data(text):
    return plugin(text)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streaming")
    succeed("train", *data, TRAIN, "--max-update 5 --save-dir", folder)
    return folder


def test_a_run_that_was_resumed_within_the_text_equals_a_straight_one(data, trained, tmp_path):
    succeed("train", *data, TRAIN, "--max-update 3 --save-dir", tmp_path)
    assert load(tmp_path / "checkpoint_last.pt")["extra_state"]["train_iterator"]["stream"]["rows"] == 4
    succeed("train", *data, TRAIN, "--max-update 5 --save-dir", tmp_path)
    assert_same_training(load(trained / "checkpoint_last.pt"), load(tmp_path / "checkpoint_last.pt"))
    line = refused("train", *data, TRAIN, "--segment-length 8 --max-update 6 --save-dir", tmp_path)
    assert "segment length 16, got 8" in line


@pytest.mark.parametrize("words, warned", [("", True), ("--no-token-positional-embeddings", False)])
def test_positions_that_end_with_the_stream_are_warned_of(words, warned, data, tmp_path):
    said = succeed("train", *data, TRAIN, words, "--max-update 1 --no-save --save-dir", tmp_path)
    assert said.count("The model will predict longer texts badly") == warned


def test_the_length_of_segments_does_not_change_the_score(data, trained):
    words = "--task streaming_lm --gen-subset valid --path", trained / "checkpoint_last.pt"
    said = (succeed("eval_lm", *data, *words, "--segment-length", length) for length in ("5", "1000"))
    scores = {float(LOSS.search(text).group(1)) for text in said}
    assert len(scores) == 1


@pytest.mark.parametrize("words", ["--remove-bpe", "--post-process subword_nmt"])
def test_words_are_not_counted(words, data, trained):
    path = trained / "checkpoint_last.pt"
    line = refused("eval_lm", *data, "--task streaming_lm --gen-subset valid --path", path, words)
    assert "--task streaming_lm" in line


def test_a_stream_reads_one_folder(data, trained):
    folders = f"{data[-1]}:{data[-1]}"
    words = "--task streaming_lm --gen-subset valid --path", trained / "checkpoint_last.pt"
    line = refused("eval_lm", *data[:-1], folders, *words)
    assert "got 2" in line


def test_nothing_is_sampled_and_scored_as_nothing(data, trained):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data[-1]))
    assert hub.sample([]) == hub.score([]) == hub.translate([]) == []
    assert hub.sample([], stream=hub.read("w1")) == []


@pytest.mark.parametrize(
    "words, message",
    [
        ("--segment-length 0", "--segment-length 0"),
        ("--bptt-segments -1", "--bptt-segments -1"),
        ("--batch-size 100000", "100000"),
        ("-a transformer_lm", "luna_lm"),
        ("--decoder-layerdrop 0.5", "--decoder-layerdrop"),
        ("--checkpoint-activations", "--checkpoint-activations"),
    ],
)
def test_what_cannot_be(data, tmp_path, words, message):
    train = TRAIN.replace("--projection-length 8 --causal-decay", "") if "transformer" in words else TRAIN
    assert message in refused("train", *data, train, words, "--max-update 1 --save-dir", tmp_path)


def test_validation_has_the_rows_that_it_is_asked_for(data, trained):
    words = *data, "--task streaming_lm --path", trained / "checkpoint_last.pt", "--batch-size 1"
    assert "--batch-size 1 differs from the 4 streams of the text. Also use --batch-size-valid 1" in refused(
        "validate", *words
    )
    assert "valid: 1 streams" in succeed("validate", *words, "--batch-size-valid 1")


def test_reading_and_going_on_from_python(data, trained):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data[-1]))
    stream = hub.read("w1 w2 w3 w4")
    hub.read("w5 w6", stream)
    assert stream.position == 8
    one = hub.sample(["w7", "w7 w8"], beam=2, max_len_b=6, stream=stream)
    assert one == hub.sample(["w7", "w7 w8"], beam=2, max_len_b=6, stream=stream) and stream.position == 8
    assert one[0].startswith("w7") and one[1].startswith("w7 w8")


@pytest.mark.parametrize("options", [{}, {"sampling": True}], ids=["beam", "sampling"])
def test_segments_do_not_limit_prompts_and_continuations(options, data, trained):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data[-1]))
    prompt = " ".join(["w3 w4"] * 20)  # the segments have 16 tokens
    for more in ({}, {"stream": hub.read("w1 w2")}):
        text = hub.sample(prompt, min_len=60, max_len_b=60, **options, **more)
        # A sample may contain special tokens, which are not part of the text.
        assert text.startswith(prompt) and 55 < len(hub.encode(text)) <= 61
    with pytest.raises(InputError, match="a prompt of 40 tokens exceeds the maximum length 30: shorten it"):
        hub.sample(prompt, max_len_b=30, **options)
    with pytest.raises(InputError, match="--min-len 40 exceeds the maximum length 30"):
        hub.sample("w1", max_len_b=30, min_len=40, **options)


def test_sentences_are_scored_each_by_itself(data, trained):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data[-1]))
    sentences = ["w1 w2 w3", "w9 w12 w15 w18", " ".join(["w3 w4"] * 20)]  # longer than a segment
    alone = [hub.score(sentence)["score"].item() for sentence in sentences]
    assert [found["score"].item() for found in hub.score(sentences)] == pytest.approx(alone, abs=1e-5)


def test_a_text_goes_on_as_a_list_of_it_does(data, trained):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data[-1]))
    for text in ("w1 w2 w3 w4", "w9 w12 w15"):
        stream, options = hub.read(text), {"max_len_b": 9}
        (listed,) = hub.sample(["w7"], stream=stream, **options)
        assert hub.sample("w7", stream=stream, **options) == hub.translate("w7", 1, stream=stream, **options)
        assert hub.sample("w7", stream=stream, **options) == listed != hub.sample("w7", **options)


def test_threads_go_on_from_their_own_texts(data, trained):
    hub = LunaLanguageModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data[-1]))
    streams = [hub.read(text) for text in ("w1 w2 w3 w4", "w9 w12 w15", "w2 w4 w6 w8 w10", "w5")]

    def go_on(stream):
        return hub.sample(["w7", "w8 w9"], beam=2, max_len_b=12, min_len=10, stream=stream)

    expected = [go_on(stream) for stream in streams]
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(go_on, streams * 5)] == expected * 5
    assert len({*map(tuple, expected)}) > 1


@pytest.mark.parametrize("use", [lambda hub: hub.read("w1"), lambda hub: hub.sample("w1", stream=Stream())])
def test_several_models_have_no_stream(use, data, trained):
    path = trained / "checkpoint_last.pt"
    hub = LunaLanguageModel.from_pretrained(str(trained), f"{path.name}:{path.name}", str(data[-1]))
    assert hub.sample("w1", max_len_b=3)
    with pytest.raises(InputError, match="stream"):
        use(hub)
