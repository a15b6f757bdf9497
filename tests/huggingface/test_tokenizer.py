"""Tokenizers of exported models compared with fairseq's encoding."""

import json
from argparse import Namespace

import pytest
import sentencepiece
import torch

from fairseq.data import Dictionary, encoders
from fairseq.models.roberta import RobertaHubInterface
from luna_fairseq.errors import InputError
from luna_fairseq.models.masked_lm_hub import IdentityTokenizer, MaskTokenizer
from luna_fairseq.text.dictionaries import build_dictionary
from luna_fairseq.text.joint_bpe import bpe_dictionary, learn_bpe

transformers = pytest.importorskip("transformers")

from luna_fairseq.huggingface.export import write_tokenizer  # noqa: E402
from luna_fairseq.huggingface.tokenization_luna import LunaTokenizer  # noqa: E402
from luna_fairseq.huggingface.tokenizer import (  # noqa: E402
    Template,
    build_tokenizer,
    choose_template,
    tokenizer_for_task,
    word_tokenizer,
)

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
    "a <s> b </s> c <pad> d",
    "x<s>y</s>",
    "the cat\nsat\r\non the\u2028mat",
    "a <mask> cat",
]
UNDERSCORES = ["\u2581", "\u2581the cat", "a\u2581\u2581b \u2581 c"]


class Hub(RobertaHubInterface):
    """fairseq's hub interface without a model, for ``encode``."""

    def __init__(self, bpe, dictionary):
        torch.nn.Module.__init__(self)
        self.bpe = MaskTokenizer(bpe)
        self.task = type("Task", (), {"source_dictionary": dictionary})


def encoded_alike(files, dictionary, bpe, folder, lines=HARD):
    dictionary.add_symbol("<mask>")
    dictionary.pad_to_multiple_(8)
    tokenizer, hub = build_tokenizer(files, dictionary, 512), Hub(bpe, dictionary)
    write_tokenizer(tokenizer, folder)
    for found in (tokenizer, LunaTokenizer.from_pretrained(str(folder))):
        assert len(found) == len(dictionary)
        assert found.mask_token_id == dictionary.index("<mask>")
        for line in lines:
            assert found(line).input_ids == hub.encode(line).tolist(), line
        assert found(*TEXT[:2]).input_ids == hub.encode(*TEXT[:2]).tolist()
    return tokenizer


def test_sentencepiece(tmp_path):
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(learn_bpe(iter(TEXT * 3), 60))
    files = {"bpe": "sentencepiece", "sentencepiece_model": str(path)}
    dictionary = bpe_dictionary(path, {"▁the": 5, "▁a": 9})
    bpe = encoders.build_bpe(Namespace(**files))
    tokenizer = encoded_alike(files, dictionary, bpe, tmp_path / "hf", HARD + UNDERSCORES)
    assert tokenizer.decode(tokenizer(TEXT[1]).input_ids, skip_special_tokens=True) == TEXT[1]
    assert tokenizer(["a", "the cat"], padding=True).attention_mask[0][-1] == 0
    dictionary.add_symbol("<sep>")
    of_documents = build_tokenizer(files, dictionary, 512, Template("$A", "$A $B"))
    write_tokenizer(of_documents, tmp_path / "documents")
    for found in (of_documents, LunaTokenizer.from_pretrained(str(tmp_path / "documents"))):
        joined = " <sep> ".join(bpe.encode(line) for line in TEXT)
        read = found(" <sep> ".join(TEXT)).input_ids
        assert read == dictionary.encode_line(joined, append_eos=False).tolist()
        assert found.decode(read) == " <sep> ".join(TEXT)
        word, separator, middle = (dictionary.index(piece) for piece in ("▁the", "<sep>", "t"))
        untidy = [separator, word, separator, separator, middle, separator]
        assert found.decode(untidy) == "<sep> the <sep> <sep> t <sep>"
    other = build_dictionary(["▁the", "<mask>"], {})
    with pytest.raises(InputError, match="dictionary lacks"):
        build_tokenizer(files, other, 512)


def test_a_unigram_model_of_sentencepiece_is_refused(tmp_path):
    prefix = tmp_path / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3), model_prefix=str(prefix), vocab_size=35, minloglevel=2
    )
    files = {"bpe": "sentencepiece", "sentencepiece_model": f"{prefix}.model"}
    dictionary = Dictionary()
    dictionary.add_symbol("<mask>")
    with pytest.raises(InputError, match="byte-pair encoding"):
        build_tokenizer(files, dictionary, 512)


def test_gpt2(tmp_path):
    """GPT-2's encoding with the bytes and three merges.

    The dictionary contains the numbers of the pieces.
    """
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    pieces = [*bytes_to_unicode().values(), "th", "the", "Ġthe", "<|endoftext|>"]
    (tmp_path / "encoder.json").write_text(json.dumps({p: n for n, p in enumerate(pieces)}), encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("#version\nt h\nth e\nĠ the\n", encoding="utf-8")
    files = {"bpe": "gpt2", "gpt2_encoder_json": str(tmp_path / "encoder.json")}
    files["gpt2_vocab_bpe"] = str(tmp_path / "vocab.bpe")
    dictionary = build_dictionary([str(n) for n in range(len(pieces))], {"258": 7})
    # A byte-pair encoding of GPT-2's reads the space before a mask, RoBERTa's tokenizer does not.
    encoded_alike(files, dictionary, encoders.build_bpe(Namespace(**files)), tmp_path / "hf", HARD[:-1])


def test_words(tmp_path):
    dictionary = build_dictionary(sorted({word for line in TEXT for word in line.split()}), {})
    tokenizer = encoded_alike({}, dictionary, IdentityTokenizer(dictionary), tmp_path / "hf")
    assert tokenizer.decode(tokenizer(TEXT[1]).input_ids, skip_special_tokens=True) == TEXT[1]


def test_pieces_of_subword_nmt_are_joined():
    dictionary = build_dictionary(["ca@@", "t", "sa@@", "@@t", "mat"], {})
    ids = {dictionary[index]: index for index in range(len(dictionary))}
    tokenizer = word_tokenizer(ids, join_pieces=True)
    for line in ("ca@@ t sa@@ t mat", "mat ca@@", "t", "mat @@t ca@@ t"):
        ids = dictionary.encode_line(line, add_if_not_exist=False, append_eos=False)
        assert tokenizer.encode(line).ids == ids.tolist()
        assert tokenizer.decode(ids.tolist()) == dictionary.string(ids, "@@ ").strip()


def test_a_dictionary_of_pieces_without_its_tokenizer_is_refused():
    dictionary = Dictionary()
    for piece in ("\u2581the", "\u2581c", "at", "<mask>"):
        dictionary.add_symbol(piece)
    with pytest.raises(InputError, match="sentencepiece.bpe.model"):
        build_tokenizer({}, dictionary, 512)


@pytest.mark.parametrize(
    "init, separator, expected",
    [
        (0, 2, [0, 4, 2, 2, 5, 2]),
        (0, None, [0, 4, 2, 5, 2]),
        (None, None, [4, 2, 5, 2]),
        (5, 4, [5, 4, 2, 4, 5, 2]),
    ],
)
def test_a_pair_is_built_as_in_the_task_of_fine_tuning(init, separator, expected):
    dictionary = Dictionary()
    for word in ("one", "two"):
        dictionary.add_symbol(word)
    options = Namespace(init_token=init, separator_token=separator)
    config = Namespace(model_type="luna", is_encoder_decoder=False)
    for task in (Namespace(cfg=options), Namespace(cfg=None, args=options)):  # prediction, ranking
        task.source_dictionary = dictionary
        tokenizer = build_tokenizer({}, dictionary, 512, choose_template(config, task))
        assert tokenizer("one", "two").input_ids == expected


def test_encoded_text_around_a_mask_is_checked_as_a_whole():
    dictionary = Dictionary()
    for piece in ("\u2581the", "\u2581cat", ".", "<mask>"):
        dictionary.add_symbol(piece)
    tokenizer = MaskTokenizer(IdentityTokenizer(dictionary))
    text = "\u2581the \u2581cat <mask> ."
    assert tokenizer.encode(text).split() == text.split()
    with pytest.raises(InputError, match="contains pieces of sentencepiece, but the text is plain"):
        tokenizer.encode("<mask> .")


@pytest.mark.parametrize("add_bos_token", [False, True])
def test_a_text_of_a_language_model_begins_as_in_its_task(add_bos_token):
    task = language_model_task(add_bos_token=add_bos_token)
    tokenizer = tokenizer_for_task(task, [], language_model_config())
    assert tokenizer("one two").input_ids == [0 if add_bos_token else 2, 4, 5]
    assert tokenizer.bos_token == ("<s>" if add_bos_token else "</s>")


@pytest.mark.parametrize(
    "reads_any_length, learned, none, limited",
    [
        (True, False, True, False),
        (True, False, False, False),
        (True, True, True, False),
        (True, True, False, True),
        (False, False, True, True),
    ],
)
def test_a_streaming_model_without_learned_positions_reads_any_length(
    reads_any_length, learned, none, limited
):
    task = language_model_task()
    task.reads_any_length = reads_any_length
    tokenizer = tokenizer_for_task(task, [], language_model_config(learned, none))
    assert len(tokenizer("one " * 20, truncation=True).input_ids) == (16 if limited else 21)


def language_model_task(**options):
    dictionary = Dictionary()
    for word in ("one", "two"):
        dictionary.add_symbol(word)
    return Namespace(
        source_dictionary=dictionary, target_dictionary=dictionary, cfg=None, args=Namespace(**options)
    )


def language_model_config(learned=False, none=False):
    return Namespace(
        model_type="luna_lm",
        is_encoder_decoder=False,
        max_position_embeddings=16,
        decoder_learned_pos=learned,
        no_token_positional_embeddings=none,
    )


def test_decoding_leaves_the_tokenizer_as_it_is_for_other_threads(monkeypatch):
    source, target = (build_dictionary(words, {}) for words in (["one", "two"], ["two", "one"]))
    tokenizer = build_tokenizer({}, source, 9, Template("$A", "$A $B"))
    tokenizer.set_target(build_tokenizer({}, target, 9, Template("$A", "$A $B")).backend_tokenizer)
    base, seen = transformers.PreTrainedTokenizerFast, []
    decode = base._decode

    def observe(self, *args, **kwargs):
        seen.append(tokenizer._tokenizer is tokenizer._source)
        return decode(self, *args, **kwargs)

    monkeypatch.setattr(base, "_decode", observe)
    ids = target.encode_line("one two", append_eos=False, add_if_not_exist=False).tolist()
    assert tokenizer.decode(ids) == "one two" and seen == [True]
