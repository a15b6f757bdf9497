"""The Python interface of translation and causal language models, on small models."""

from unittest.mock import Mock

import pytest
import torch
from tiny_checkpoints import save
from tiny_luna import OPTIONS, Task, build_perturbed
from tiny_models import LM_OPTIONS

from fairseq import hub_utils
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaLanguageModel, LunaMaskedLM, LunaModel
from luna_fairseq.models.generator_hub import GeneratorHub
from luna_fairseq.models.stream import Stream
from luna_fairseq.ops.attention import naive_softmax_weights
from luna_fairseq.peers.models import PeerLanguageModel, PeerTransformer

MODELS = {"translation": LunaModel, "causal LM": LunaLanguageModel}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Function that loads a small model of a kind with options of ``from_pretrained``."""
    folders = {}

    def loaded(kind="translation", **options):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("saved")
            save(kind, "tied", folders[kind])
        return MODELS[kind].from_pretrained(
            str(folders[kind]), "model.pt", str(folders[kind] / "data"), **options
        )

    return loaded


@pytest.mark.parametrize("kind", MODELS)
def test_a_sentence_may_be_longer_than_the_batches_of_the_training(kind, load):
    texts = ["w1 w2", "w3 " * 12]
    expected, found = (load(kind, max_tokens=size).sample(texts, max_len_b=20) for size in (None, 5))
    assert found == expected


@pytest.mark.parametrize("constraints", [None, [["w9"], ["w3"], []]])
def test_prefixes_are_those_of_their_sentences(constraints, load):
    hub = load()
    sentences = [hub.encode(text) for text in ("w1", "w2 w3 w4 w5 w6", "w7 w8 w9")]
    prefix = {"prefix_tokens": torch.tensor([[7, 11], [8, 11], [9, 11]])}
    limits = {"constraints": constraints, "max_len_a": 0, "max_len_b": 8}
    for found in (
        hub.generate(sentences, 3, inference_step_args=prefix, **limits),
        hub.generate(sentences, 3, False, False, prefix, **limits),
    ):
        best = [hypotheses[0]["tokens"].tolist() for hypotheses in found]
        assert [tokens[:2] for tokens in best] == prefix["prefix_tokens"].tolist()
        if constraints:
            assert hub.tgt_dict.index("w9") in best[0] and hub.tgt_dict.index("w3") in best[1]
    with pytest.raises(InputError, match="expected prefix_tokens for 2 sentences, got 3"):
        hub.generate(sentences[:2], inference_step_args=prefix)
    with pytest.raises(InputError, match="skip_invalid_size_inputs"):
        hub.generate(sentences, 3, False, True)


def test_a_source_alone_has_no_score(load):
    with pytest.raises(InputError, match="fairseq-generate --score-reference"):
        load().score("w1 w2")
    assert len(load("causal LM").score("w1 w2")["positional_scores"]) == 2


def test_constraints_with_alignments(load):
    hub = load()
    sentences = [hub.encode(text) for text in ("w1", "w2 w3 w4 w5 w6")]
    options = {"constraints": [["w9"], ["w3"]], "max_len_a": 0, "max_len_b": 8}
    plain, aligned = (hub.generate(sentences, 4, print_alignment=kind, **options) for kind in (None, "hard"))
    for one, other in zip(sum(plain, []), sum(aligned, [])):
        assert torch.equal(one["tokens"], other["tokens"])
        assert [target for _, target in other["alignment"]] == [*range(len(other["tokens"]) - 1)]


@pytest.mark.parametrize(
    "options, advice",
    [
        ({"beam": 2}, "beam has no effect in from_pretrained: give it to translate"),
        ({"generation_args": {"beam": 2}}, "beam has no effect"),
        ({"bf16": True}, r"bf16 has no effect in from_pretrained: call bfloat16\(\) on the loaded model"),
        ({"memory_efficient_fp16": True}, r"call half\(\)"),
        ({"nbest": 2}, "nbest has an effect in fairseq's commands only"),
        ({"replace_unk": "file"}, "replace_unk has an effect in fairseq's commands only"),
    ],
)
def test_options_without_an_effect_are_refused_at_loading(options, advice, load):
    with pytest.raises(InputError, match=advice):
        load(**options)


def test_generation_options_given_at_loading_have_an_effect(load):
    hub = load(max_len_a=0, max_len_b=3, fp16=False, lm_path=None)
    assert len(hub.generate(hub.encode("w1 w2"))[0]["tokens"]) == 4
    with pytest.raises(InputError, match="retain_dropout has no effect after loading: give it to from_pre"):
        hub.translate("w1", retain_dropout=True)
    hub = load(dropout=0.5, retain_dropout=True)
    first, second = (hub.generate(hub.encode("w1 w2"))[0]["score"] for _ in range(2))
    assert first != second


def test_a_model_without_a_state_has_no_stream(load):
    hub = load("causal LM")
    options = {name: value for name, value in LM_OPTIONS.items() if name != "projection_length"}
    hub.models[0] = build_perturbed(PeerLanguageModel, options, Task(23, 23))
    for call in (hub.read, lambda text: hub.sample(text, stream=Stream())):
        with pytest.raises(InputError, match="PeerLanguageModel has no stream"):
            call("w1 w2")


def test_a_peer_computes_weights_over_the_source_for_alignments_only(load, monkeypatch):
    spy = Mock(wraps=naive_softmax_weights)
    monkeypatch.setattr("luna_fairseq.peers.softmax.naive_softmax_weights", spy)
    hub = load()
    options = {**OPTIONS, "decoder_embed_dim": 12, "attention": "softmax"}
    task = Task(len(hub.src_dict), len(hub.tgt_dict))
    peer = build_perturbed(PeerTransformer, options, task, torch.float32)
    hub, length = GeneratorHub(hub.cfg, hub.task, [peer]), {"min_len": 5, "max_len_b": 5}
    hub.generate(hub.encode("w1 w2 w3"), 2, **length)
    assert not spy.called
    found = hub.generate(hub.encode("w1 w2 w3"), 2, print_alignment="hard", **length)
    assert found[0]["alignment"] and spy.call_count == 6  # one layer in each step


@pytest.mark.parametrize("prefixes", [None, torch.tensor([[7], [8]])])
def test_allowed_tokens_are_those_of_their_sentences(prefixes, load):
    hub, numbers = load(), set()

    def allowed(number, tokens):
        numbers.add(number)
        return [2, 7, 8] if len(tokens) < 2 else [2, 11 + number]

    sentences = [hub.encode(text) for text in ("w1", "w2 w3")]
    given = None if prefixes is None else {"prefix_tokens": prefixes}
    found = hub.generate(sentences, 2, prefix_allowed_tokens_fn=allowed, inference_step_args=given)
    assert numbers == {0, 1}
    for number, hypotheses in enumerate(found):
        assert all(set(h["tokens"][1:].tolist()) <= {2, 11 + number} for h in hypotheses)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"print_alignment": True}, "print_alignment True: give 'hard' or 'soft'"),
        ({"temperature": 0.0}, "temperature 0.0: must be above 0"),
        ({"beam": 2.5}, "beam 2.5: expected a whole number"),
        ({"beam": 0}, "beam 0: must be at least 1"),
        ({"lenpen": "x"}, "lenpen 'x': expected a number"),
        ({"sampling_topk": 3}, "sampling_topk has an effect with sampling=True only"),
        ({"sampling_topp": 0.5}, "sampling_topp has an effect with sampling=True only"),
        (
            {"constraints": ["w9 w8 w7"], "max_len_b": 2},
            "constraints of 3 tokens exceed the maximum length 2: .* larger --max-len-b",
        ),
    ],
)
def test_invalid_values_are_refused(options, message, load):
    hub = load()
    with pytest.raises(InputError, match=message):
        hub.generate(hub.encode("w1 w2"), **options)


def test_valid_values_are_accepted(load):
    hub = load(sampling=True)
    hub.generate(hub.encode("w1"), sampling_topk=3, lenpen=1, temperature=2)
    hub.generate(hub.encode("w1"), print_alignment=False, nbest=None)


@pytest.mark.parametrize("constraints, most", [(None, 20), ([["w9"]], 200)])
def test_translations_are_limited_by_the_length_of_the_source(constraints, most, load, monkeypatch):
    found = []
    monkeypatch.setattr(
        hub_utils.GeneratorHubInterface, "generate", lambda *_, **options: found.append(options) or []
    )
    hub = load()
    hub.generate([hub.encode("w1")], constraints=constraints)
    hub.generate([hub.encode("w1")], constraints=constraints, max_len_b=7)
    limits = [(options.get("max_len_a"), options["max_len_b"]) for options in found]
    assert limits == [(1.5, most), (None, 7)]


@pytest.mark.parametrize("add_bos_token", [False, True])
def test_a_line_that_is_read_has_the_score_of_a_line_alone(add_bos_token, load):
    hub, logits = load("causal LM"), []
    hub.task.args.add_bos_token = add_bos_token
    handle = hub.models[0].register_forward_hook(lambda *given: logits.append(given[-1][0]))
    hub.read("w1 w2")
    handle.remove()
    expected = hub.score("w1 w2")["positional_scores"]
    lprobs = logits[0][0, :2].log_softmax(dim=-1)
    torch.testing.assert_close(lprobs.gather(1, hub.encode("w1 w2")[:2, None])[:, 0], expected)


class JoiningEncoder:
    """Subword encoder that drops line breaks, as sentencepiece does."""

    def encode(self, text):
        return text.replace("\n", "").replace("\r", "")


def test_a_line_break_separates_words(load):
    hub = load()
    hub.bpe = JoiningEncoder()
    expected = hub.encode("w1 w2").tolist()
    for text in ("w1\nw2", "w1\r\nw2\n", "\nw1\u2028w2"):
        assert hub.encode(text).tolist() == hub.encode_target(text).tolist() == expected
    assert hub.apply_bpe(hub.tokenize("w1\nw2")) == "w1 w2"


def test_a_model_without_a_decoder_has_no_8_bits(tmp_path):
    path, data, _ = save("masked LM", "tied", tmp_path)
    state = torch.load(str(path), weights_only=False)
    state["cfg"]["model"]["int8"] = True  # older checkpoints of every model have the option
    torch.save(state, str(path))
    arguments = str(tmp_path), path.name, str(data)
    LunaMaskedLM.from_pretrained(*arguments)
    with pytest.raises(
        InputError, match="^--int8: the checkpoint's model, luna_bert, does not support 8-bit"
    ):
        LunaMaskedLM.from_pretrained(*arguments, int8=True)
