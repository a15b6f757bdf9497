"""Beam search over the candidates of a batch equals a search in which all other pieces are masked."""

from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from tiny_luna import (
    OPTIONS,
    PAD,
    Task,
    assert_same_hypotheses,
    batch,
    build_perturbed,
    example,
    sentences,
    tiny_model,
)
from tiny_models import LM_OPTIONS
from torch import nn

from fairseq import options, search
from fairseq.dataclass.configs import FairseqConfig
from fairseq.token_generation_constraints import pack_constraints
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaLanguageModel, LunaModel
from luna_fairseq.models.int8 import Linear8
from luna_fairseq.models.sequence_generator import AlignedGenerator, Generator
from luna_fairseq.models.shortlist import Shortlist, identify, select_outputs
from luna_fairseq.peers.models import PeerTransformer
from luna_fairseq.text.lexicon import Lexicon, read_lexicon, write_lexicon

TASK = Task(23, 41)
SOURCE, TARGET = TASK.source_dictionary, TASK.target_dictionary
# Three of 36 pieces for each source piece, two for every sentence.
CANDIDATES = {"": ["w3", "w9"], **{f"w{i}": [f"w{(i * k) % 36}" for k in (1, 5, 7)] for i in range(16)}}


LEXICON = Lexicon(CANDIDATES, "en-de", identify(SOURCE), identify(TARGET))


class Masked(nn.Module):
    """Output projection over the whole dictionary that masks all pieces but the given ones."""

    def __init__(self, projection, kept):
        super().__init__()
        self.projection, self.kept = projection, kept

    def forward(self, x):
        logits = self.projection(x)
        mask = torch.ones(logits.size(-1), dtype=torch.bool)
        mask[self.kept] = False
        return logits.masked_fill(mask, -torch.inf)


def prepared(path=None, dtype=torch.float64, **given):
    given["shortlist"] = path and str(path)
    if "attention" in given:
        model = build_perturbed(PeerTransformer, {**OPTIONS, "decoder_embed_dim": 12, **given}, TASK, dtype)
    else:
        model = tiny_model(dtype, task=TASK, **given)
    model.prepare_for_inference_(FairseqConfig())
    return model


@pytest.fixture
def path(tmp_path):
    write_lexicon(tmp_path / "shortlist", LEXICON)
    return tmp_path / "shortlist"


def expected_candidates(source, more=()):
    """Return the set of candidates by the definition."""
    pieces = {SOURCE[i] for i in source.flatten().tolist()}
    symbols = {x for piece in ("", *pieces) for x in CANDIDATES.get(piece, ())}
    return sorted({0, 1, 2, 3, *map(TARGET.index, symbols), *more})


def generate(models, source, *, kind=Generator, strategy=None, **kwargs):
    """Return the hypotheses of a search. "call" holds keyword arguments of ``generate``."""
    call = kwargs.pop("call", {})
    if strategy is not None:
        kwargs["search_strategy"] = strategy(TARGET)
    for model in models:  # as --print-alignment
        model.decoder.need_attn = kind is AlignedGenerator
    torch.manual_seed(3)
    generator = kind(models, TARGET, **{"beam_size": 3, "max_len_b": 12, **kwargs})
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(dim=1)}}
    return generator.generate(models, sample, **call)


PREFIX = torch.tensor([[7, 32, 5], [4, PAD, PAD], [38, 6, PAD]])
CONSTRAINTS = pack_constraints([[torch.tensor([7, 32])], [], [torch.tensor([38]), torch.tensor([6])]])


SEARCHES = {
    "beam": {},
    "beam 1": {"beam_size": 1},
    "as many hypotheses as pieces": {"beam_size": 20},
    "alignments": {"kind": AlignedGenerator},
    "diverse groups": {"strategy": lambda d: search.DiverseBeamSearch(d, 3, 0.5)},
    "diverse siblings": {"strategy": lambda d: search.DiverseSiblingsSearch(d, 0.5)},
    "sampling": {"strategy": lambda d: search.Sampling(d, sampling_topk=4)},
    "prefix": {"call": {"prefix_tokens": PREFIX}},
    "prefixes that end": {"call": {"prefix_tokens": torch.tensor([[7, 2], [4, 5], [9, PAD]])}},
    "first token": {"call": {"bos_token": 11}},
    "end symbol of a language": {"eos": 20},
    "ordered constraints": {
        "strategy": lambda d: search.LexicallyConstrainedBeamSearch(d, "ordered"),
        "call": {"constraints": CONSTRAINTS},
    },
    "unordered constraints": {
        "strategy": lambda d: search.LexicallyConstrainedBeamSearch(d, "unordered"),
        "call": {"constraints": CONSTRAINTS},
    },
    "length penalty, n-grams, least length": {"len_penalty": 0.4, "no_repeat_ngram_size": 2, "min_len": 4},
    "temperature and unknown words": {"temperature": 0.7, "unk_penalty": -3},
    "suppressed": {"tokens_to_suppress": ["w3", "w8", "w33"]},
}


@pytest.mark.parametrize("number", [1, 2], ids=["one model", "ensemble"])
@pytest.mark.parametrize("name", SEARCHES)
def test_search_finds_what_it_finds_with_all_other_pieces_masked(name, number, path):
    source = batch(example((9, 4, 6))[0], left=True)
    call = SEARCHES[name].get("call", {})
    more = {
        "prefix_tokens": call.get("prefix_tokens", PREFIX).flatten().tolist(),
        "bos_token": [],
        "constraints": CONSTRAINTS[:, 1:].flatten().tolist(),
    }
    more = [i for key in call for i in more[key]]
    kept = expected_candidates(source, [*more, SEARCHES[name].get("eos", 2)])
    if name == "as many hypotheses as pieces":
        kept = range(len(TARGET))
    restricted = [prepared(path, seed=seed) for seed in range(number)]
    found = generate(restricted, source, **SEARCHES[name])
    plain = [prepared(seed=seed) for seed in range(number)]
    for model in plain:
        model.decoder.output_projection = Masked(model.decoder.output_projection, list(kept))
    assert_same_hypotheses(found, generate(plain, source, **SEARCHES[name]))


def test_candidates_of_a_batch(path):
    shortlist = Shortlist.load(str(path), SOURCE, TARGET)
    source = batch(sentences((4, 6), 23))
    assert shortlist.find_candidates(source).tolist() == expected_candidates(source)
    assert shortlist.find_candidates(source, [torch.tensor([[5]])]).tolist() == expected_candidates(
        source, [5]
    )
    few = torch.tensor([[2]])
    assert shortlist.find_candidates(few).tolist() == [0, 1, 2, 3, TARGET.index("w3"), TARGET.index("w9")]
    assert shortlist.find_candidates(few, minimum=8).tolist() == [0, 1, 2, 3, 4, 5, 8, 14]


def test_candidates_are_of_the_sentences_of_the_batch_alone(path):
    """A generator that is used for several batches forgets the candidates of earlier batches."""
    model = prepared(path)
    one, two = batch(sentences((5,), 23, seed=1)), batch(sentences((7,), 23, seed=2))
    first = generate([model], one)
    generate([model], two)
    assert_same_hypotheses(generate([model], one), first)


SHARED = {"share_decoder_input_output_embed": True}


ANCHORED = {"cross_attention": "softmax", "anchored_packed": True}


@pytest.mark.parametrize("given", [{}, SHARED, ANCHORED, {"attention": "softmax"}])
@pytest.mark.parametrize("int8", [False, True])
def test_variants_and_8_bits(given, int8, path):
    source = batch(example((9, 4, 6))[0])
    found = generate([prepared(path, torch.float32, int8=int8, **given)], source)
    model = prepared(dtype=torch.float32, int8=int8, **given)
    assert isinstance(model.decoder.output_projection, Linear8) == int8
    model.decoder.output_projection = Masked(model.decoder.output_projection, expected_candidates(source))
    assert_same_hypotheses(found, generate([model], source))


@pytest.mark.parametrize("bias", [None, torch.randn(21)])
def test_selected_outputs_of_8_bits_are_the_same_bit_for_bit(bias):
    layer, x, outputs = Linear8(torch.randn(21, 16), bias), torch.randn(3, 16), torch.tensor([2, 5, 6, 19])
    for _ in range(2):
        assert torch.equal(layer.select(outputs)(x), layer(x)[:, outputs])
    assert torch.equal(layer.select(outputs).select(torch.tensor([1]))(x), layer(x)[:, 5:6])


def test_selected_outputs_with_a_bias():
    layer, x = nn.Linear(6, 9).double(), torch.randn(2, 6).double()
    torch.testing.assert_close(select_outputs(layer, torch.tensor([0, 7]))(x), layer(x)[:, [0, 7]])


def test_no_tensor_of_the_step_has_the_width_of_the_dictionary(path):
    model, widths = prepared(path), set()
    normalized = model.get_normalized_probs
    model.get_normalized_probs = lambda out, **kwargs: (
        widths.add(out[0].size(-1)) or normalized(out, **kwargs)
    )
    source = batch(sentences((5,), 23))
    generate([model], source)
    assert widths == {len(expected_candidates(source))}


@pytest.mark.parametrize("strategy", [None, lambda d: search.DiverseSiblingsSearch(d, 0.5)])
def test_several_threads_share_a_model(strategy, path):
    """Each thread finds what it finds alone, because a search changes nothing that another one reads."""
    model, sources = prepared(path), [batch(sentences((n, 5), 23, seed=n)) for n in (4, 6, 9, 13)]
    run = partial(generate, [model], strategy=strategy)
    expected = [run(source) for source in sources]
    with ThreadPoolExecutor(4) as threads:
        for found, wanted in zip(threads.map(run, sources * 6), expected * 6):
            assert_same_hypotheses(found, wanted)


def test_a_language_model_scores_the_candidates(path):
    source = batch(example((9, 4, 6))[0])
    language_model = build_perturbed(LunaLanguageModel, LM_OPTIONS, Task(41, 41))
    added = {"lm_model": language_model, "lm_weight": 0.5}
    found = generate([prepared(path)], source, **added)
    model = prepared()
    model.decoder.output_projection = Masked(model.decoder.output_projection, expected_candidates(source))
    assert_same_hypotheses(found, generate([model], source, **added))


def test_allowed_tokens_are_refused(path):
    """The shortlist may lack all of them."""
    allowed = partial(search.PrefixConstrainedBeamSearch, prefix_allowed_tokens_fn=lambda *_: [2, 35])
    with pytest.raises(InputError, match="prefix_allowed_tokens_fn .* load the model without shortlist"):
        generate([prepared(path)], batch(sentences((5,), 23)), strategy=allowed)


def test_an_adaptive_softmax_is_refused(path):
    with pytest.raises(InputError, match="adaptive softmax .* leave out --shortlist"):
        prepared(path, torch.float32, adaptive_softmax_cutoff="8,12")


@pytest.mark.parametrize("command", ["generation", "interactive_generation"])
def test_commands_take_it(command, path):
    parser = getattr(options, f"get_{command}_parser")()
    line = ["data", "--path", "p.pt", "--shortlist", str(path), "--model-overrides", "{'dropout': 0}"]
    args = options.parse_args_and_arch(parser, line)
    assert not args.cpu and eval(args.model_overrides) == {"dropout": 0, "shortlist": str(path)}
    args = options.parse_args_and_arch(getattr(options, f"get_{command}_parser")(), [*line, "--int8"])
    assert args.cpu and eval(args.model_overrides) == {"dropout": 0, "shortlist": str(path), "int8": True}


@pytest.mark.parametrize(
    "command, words, message",
    [
        ("generation", "data --path p.pt --shortlist nowhere", "--shortlist nowhere does not exist"),
        (
            "generation",
            "data --path p.pt --score-reference --shortlist {path}",
            "the whole dictionary. Leave",
        ),
        (
            "generation",
            "data --task translation_from_pretrained_bart --langs en,de --path p.pt --shortlist {path}",
            "has its own search. Leave",
        ),
        ("training", "data --arch luna --shortlist {path}", "restricts a trained model. Give it to fairseq-"),
    ],
)
def test_wrong_uses_are_refused_before_work(command, words, message, path):
    parser = getattr(options, f"get_{command}_parser")()
    with pytest.raises(InputError, match=message):
        options.parse_args_and_arch(parser, words.format(path=path).split())


def test_from_pretrained_refuses_a_missing_file():
    with pytest.raises(InputError, match="--shortlist nowhere does not exist"):
        LunaModel.from_pretrained(".", shortlist="nowhere")


@pytest.mark.parametrize(
    "text, message",
    [
        ("w1\tw2 w3\nw2 w3\n", "line 2 of .* has no candidates after a tab"),
        ("w1\t\n", "line 1 of .* has no candidates"),
        ("w1\tw2\nw1\tw3\n", "line 2 of .* has 'w1' again"),
        ("w1\tw2\nw3\tw", "is cut off"),
        ("", "is no lexicon"),
        ("w1\tw2 word\n", "has the piece 'word', which the target dictionary lacks"),
        (b"w1\t\xff\n", "is not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused(text, message, tmp_path):
    file = tmp_path / "shortlist"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        Shortlist.load(str(file), SOURCE, TARGET)
    with pytest.raises(InputError, match="does not exist"):
        Shortlist.load(str(tmp_path / "other"), SOURCE, TARGET)


def test_a_lexicon_is_read_as_it_was_written(tmp_path):
    written = Lexicon({"": ["a", "b"], "\u2581x": ["\u2581y"], "z\u00a0": ["\u2028", "#"]})
    for lexicon in (written, written._replace(languages="pt-BR-zh_CN", source="8-ab", target="9-cd")):
        write_lexicon(tmp_path / "file", lexicon)
        assert read_lexicon(tmp_path / "file") == lexicon
    (tmp_path / "file").write_text("#made-for:en-de\t<unk>\nw1\tw2\n")
    with pytest.raises(InputError, match="line 1 of .* is damaged"):
        read_lexicon(tmp_path / "file")


@pytest.mark.parametrize(
    "made_for, message",
    [
        ({"languages": "de-en"}, "made for de-en, the model translates en-de"),
        ({"source": identify(TARGET)}, "another source dictionary .41-"),
        ({"source": "many"}, "another source dictionary .many"),
        ({"target": "41-5140f07260ee51d5"}, "another target dictionary .41-"),
    ],
)
def test_a_shortlist_for_another_model_is_refused(made_for, message, path):
    write_lexicon(path, LEXICON._replace(**made_for))
    model, cfg = tiny_model(task=TASK, shortlist=str(path)), FairseqConfig()
    cfg.task = Namespace(source_lang="en", target_lang="de")
    with pytest.raises(InputError, match=message):
        model.prepare_for_inference_(cfg)
    write_lexicon(path, LEXICON)
    model.prepare_for_inference_(cfg)
    assert model.shortlist is not None


def test_a_task_may_append_symbols_to_the_dictionaries(path):
    target = Task(23, 41).target_dictionary
    target.add_symbol("__de__")
    assert len(Shortlist.load(str(path), SOURCE, target).always) == 42


def test_a_shortlist_that_names_no_dictionary_is_used_with_a_warning(path, caplog):
    write_lexicon(path, Lexicon(CANDIDATES))
    assert prepared(path).shortlist is not None
    assert "does not say which dictionaries" in caplog.text


def test_hooks_and_replaced_projections_have_an_effect_on_selected_outputs():
    x, outputs = torch.randn(2, 6), torch.tensor([0, 7])
    for make in (lambda: nn.Linear(6, 9), lambda: Linear8(torch.randn(9, 6), None)):
        hooked = make()
        hooked.register_forward_hook(lambda layer, inputs, y: y + 1)
        for layer in (hooked, nn.Sequential(make(), nn.ReLU())):
            torch.testing.assert_close(select_outputs(layer, outputs)(x), layer(x)[:, outputs])
