"""The beam search of this package finds the hypotheses of fairseq's search, with equal scores."""

import math
from argparse import Namespace

import pytest
import tiny_luna
import torch
from tiny_luna import (
    EOS,
    PAD,
    Task,
    assert_same_hypotheses,
    batch,
    build_perturbed,
    example,
    marked,
    sentences,
    tiny_model,
)
from tiny_models import LM_VARIANTS, SOFTMAX_VARIANTS, language_model, softmax_causal
from torch.nn.functional import cross_entropy

from fairseq import search
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna import LunaModel
from luna_fairseq.models.sequence_generator import (
    AlignedGenerator,
    Generator,
    RepeatBlock,
    find_largest,
)
from luna_fairseq.peers.models import PeerTransformer
from luna_fairseq.peers.rnn_attention import RnnAttentionModel

ADAPTIVE = {"adaptive_softmax_cutoff": "8,14"}
SMALL, LARGE = Task(23, 41), Task(23, 6000)  # the large dictionary is sorted by blocks
ALIGNMENT = SequenceGeneratorWithAlignment, AlignedGenerator


def source_batch():
    return batch(example((9, 4, 6, 2))[0], left=True)


def run(kind, models, source, **options):
    """Return the hypotheses of a generator class. "call" holds keyword arguments of ``generate``."""
    call = options.pop("call", {})
    models = models if isinstance(models, list) else [models]
    for module in (module for model in models for module in model.modules() if hasattr(module, "need_attn")):
        module.need_attn = kind in ALIGNMENT  # as in fairseq-generate
    generator = kind(models, models[0].decoder.dictionary, **{"beam_size": 5, "max_len_b": 12, **options})
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(dim=1)}}
    return generator.generate(models, sample, **call)


def assert_same_search(models, source, **options):
    expected, found = (run(kind, models, source, **options) for kind in (SequenceGenerator, Generator))
    assert_same_hypotheses(found, expected, ("score", "positional_scores"))
    for one in sum(found, []):
        assert not len(one["attention"]) and not len(one["alignment"])  # only computed for alignments


PREFIX = torch.tensor([[7, 32, 5], [4, PAD, PAD], [38, 6, PAD], [9, PAD, PAD]])
OPTIONS = {
    "plain": {},
    "sums of scores": {"normalize_scores": False},
    "length penalty": {"len_penalty": 0.3},
    "least length": {"min_len": 6},
    "one token": {"max_len_b": 0, "min_len": 0},
    "temperature": {"temperature": 0.6},
    "unknown words": {"unk_penalty": -4},
    "suppressed": {"tokens_to_suppress": ["w3", "w8", "w33"]},
    "end symbol of a language": {"eos": 20},
    "first token": {"call": {"bos_token": 11}},
    "prefixes": {"call": {"prefix_tokens": PREFIX}},
    "prefixes, least length": {"call": {"prefix_tokens": PREFIX}, "min_len": 5},
}


@pytest.mark.parametrize("number, beam", [(1, 1), (1, 4), (1, 5), (2, 4)])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, number, beam):
    models = [tiny_model(seed=seed, task=SMALL) for seed in range(number)]
    assert_same_search(models, source_batch(), beam_size=beam, **OPTIONS[name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_len": 2},
        {"call": {"prefix_tokens": PREFIX}},
        {"no_repeat_ngram_size": 1},
        {"tokens_to_suppress": ["w3", "w8", "w33"]},
    ],
    ids=["plain", "least length", "prefixes", "no repetition", "suppressed"],
)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_limit_by_the_source_does_not_depend_on_the_batch(options, beam):
    """For each sentence alone, the search is fairseq's."""
    model, source = tiny_model(task=SMALL), source_batch()
    options = {"max_len_a": 0.5, "max_len_b": 1, "beam_size": beam, **options}
    # fairseq's block of n-grams has no effect.
    kind = Generator if "no_repeat_ngram_size" in options else SequenceGenerator
    lengths = set()
    for number, found in enumerate(run(Generator, model, source, **options)):
        call = {name: value[number : number + 1] for name, value in options.get("call", {}).items()}
        alone = source[number, source[number].ne(PAD)][None]
        (expected,) = run(kind, model, alone, **{**options, "call": call})
        assert [x["tokens"].tolist() for x in found] == [x["tokens"].tolist() for x in expected]
        for one, other in zip(found, expected):
            torch.testing.assert_close(
                one["positional_scores"], other["positional_scores"], rtol=0, atol=1e-6
            )
        lengths.add(len(found[0]["tokens"]))
    assert len(lengths) > 1


def test_the_least_length_exceeds_the_limit_by_the_source():
    found = run(Generator, tiny_model(), source_batch(), max_len_a=1, max_len_b=0, min_len=8)
    assert [len(hypotheses[0]["tokens"]) for hypotheses in found] == [10, 9, 9, 9]


def test_large_dictionary():
    model = tiny_model(torch.float32, task=LARGE)
    for beam in (1, 5, 10):
        assert_same_search(model, source_batch(), beam_size=beam, call={"prefix_tokens": PREFIX})


@pytest.mark.parametrize("beam", [20, 40, 60])
def test_more_hypotheses_than_the_dictionary_has_room_for(beam):
    assert_same_search(tiny_model(task=SMALL), source_batch(), beam_size=beam)


@pytest.mark.parametrize("soft", ["hard", "soft"])
def test_alignments(soft):
    model = tiny_model(task=SMALL)
    options = {"call": {"prefix_tokens": PREFIX}, "print_alignment": soft}
    source = source_batch()
    expected, found = (run(kind, model, source, **options) for kind in ALIGNMENT)
    assert found[0][0]["attention"].abs().sum() > 0
    for one, other in zip(sum(found, []), sum(expected, [])):
        assert one["alignment"] == other["alignment"] and torch.equal(one["attention"], other["attention"])


@pytest.mark.parametrize(
    "variant", [marked(v, id=v) for v in tiny_luna.VARIANTS if v != "look-up by parts untied pre-norm"]
)
def test_translation_models(variant):
    assert_same_search(tiny_model(**tiny_luna.VARIANTS[variant]), source_batch(), beam_size=4)


PEERS = {
    "softmax": lambda: peer("softmax"),
    "RFA": lambda: peer("rfa"),
    "RNN": lambda: build_perturbed(RnnAttentionModel, RNN, Task()),
    "softmax causal": lambda: softmax_causal(**SOFTMAX_VARIANTS["untied pre-norm"]),
    "adaptive softmax": lambda: tiny_model(**ADAPTIVE),
}
RNN = {"encoder_embed_dim": 6, "encoder_hidden_size": 5, "decoder_embed_dim": 7, "decoder_hidden_size": 10}


def peer(attention):
    options = {**tiny_luna.OPTIONS, "decoder_embed_dim": 12, "attention": attention}
    return build_perturbed(PeerTransformer, options, Task())


@pytest.mark.parametrize("name", PEERS)
def test_other_models(name):
    assert_same_search(PEERS[name](), source_batch(), beam_size=4)


@pytest.mark.parametrize("variant", [*LM_VARIANTS, "adaptive softmax"])
def test_language_models(variant):
    model = language_model(**LM_VARIANTS.get(variant, ADAPTIVE))
    prefix = batch(sentences((5, 3, 4), 23))[:, :-1]
    for options in ({}, {"call": {"prefix_tokens": prefix}}):
        assert_same_search(model, prefix, beam_size=3, **options)


def test_trained_model():
    model, source = tiny_model(torch.float32).train(), source_batch()
    target = batch(example(target_lengths=(5, 8, 3, 7))[1])
    previous = torch.cat([torch.full_like(target[:, :1], EOS), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        logits, _ = model(source, None, previous)
        cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD).backward()
        optimizer.step()
    model.eval()
    for (best, *_), tokens in zip(run(Generator, model, source), target.tolist()):
        assert best["tokens"].tolist() == [token for token in tokens if token != PAD]
    for beam in (1, 4, 5):
        assert_same_search(model, source, beam_size=beam)


def test_equal_scores():
    """Which one of equal candidates is kept is open, as in fairseq. The scores are the same."""
    model = tiny_model(task=SMALL, share_decoder_input_output_embed=True)
    with torch.no_grad():  # each token has a twin with the same embedding
        weight = model.decoder.embed_tokens.weight
        weight[23:41] = weight[5:23]
    expected, found = (
        run(kind, model, source_batch(), beam_size=4) for kind in (SequenceGenerator, Generator)
    )
    for one, other in zip(found, expected):
        for name in ("score", "positional_scores"):
            pairs = zip((x[name] for x in one), (x[name] for x in other))
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("size", [7, 127, 128, 1280, 6000, 6113])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_largest_values(size, k):
    x = torch.randn(5, size)
    x[1, ::3], x[2], x[3, :4] = -math.inf, 1.5, math.nan
    values, columns = find_largest(x, k)
    assert torch.equal(values.nan_to_num(9), x.topk(k).values.nan_to_num(9))
    assert torch.equal(x.gather(1, columns).nan_to_num(9), values.nan_to_num(9))
    assert all(len(set(row)) == k for row in columns.tolist())


def ngrams(tokens, n):
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "strategy", [search.BeamSearch, lambda d: search.DiverseSiblingsSearch(d, 0.1)], ids=["beam", "siblings"]
)
def test_no_ngram_is_repeated(n, strategy):
    """--no-repeat-ngram-size has an effect, unlike in fairseq."""
    model, limits = tiny_model(task=SMALL), {"min_len": 20, "max_len_b": 25}

    def count_repetitions(size):
        found = run(
            Generator,
            model,
            source_batch(),
            no_repeat_ngram_size=size,
            search_strategy=strategy(SMALL.target_dictionary),
            **limits,
        )
        texts = [ngrams(hypothesis["tokens"].tolist(), n) for hypothesis in sum(found, [])]
        return sum(len(text) - len(set(text)) for text in texts)

    assert count_repetitions(0) > 0 and count_repetitions(n) == 0


def test_repeated_ngrams_by_definition():
    tokens = torch.tensor([[4, 5, 4, 6, 4], [4, 4, 4, 4, 4], [4, 5, 6, 7, 8]])
    for n in (1, 2, 3, 6):
        expected = {
            (row, token)
            for row, text in enumerate(tokens.tolist())
            for token in range(10)
            if tuple([*text, token][-n:]) in ngrams(text, n)
        }
        assert set(zip(*(x.tolist() for x in RepeatBlock(n).find(tokens)))) == expected


@pytest.mark.parametrize(
    "strategy",
    [search.BeamSearch, search.Sampling, lambda d: search.DiverseBeamSearch(d, 5, 0.5)],
    ids=["beam", "sampling", "groups"],
)
def test_prefixes_may_repeat(strategy):
    prefix = torch.tensor([[7, 8, 7, 8, 7]])
    options = {"no_repeat_ngram_size": 2, "call": {"prefix_tokens": prefix}}
    options["search_strategy"] = strategy(Task().target_dictionary)
    for hypothesis in run(Generator, tiny_model(), source_batch()[:1], **options)[0]:
        assert hypothesis["tokens"][:5].tolist() == prefix[0].tolist()
        assert hypothesis["tokens"][5] != 8 and hypothesis["score"] > -math.inf


@pytest.mark.parametrize("strategy", [search.BeamSearch, search.Sampling], ids=["beam", "sampling"])
def test_the_least_length_and_suppressed_tokens_apply_after_short_prefixes(strategy):
    """In fairseq, they apply only after the longest prefix of the batch."""
    model, prefixes = tiny_model(task=SMALL), torch.tensor([[7, 32, 5], [4, PAD, PAD], [PAD, PAD, PAD]])
    projection = model.decoder.output_projection
    projection.bias = torch.nn.Parameter(projection.weight.new_zeros(len(projection.weight)))
    projection.bias.data[[EOS, 7]] = 9.0  # what is forbidden is likely
    names = [model.decoder.dictionary[7]]
    options = {"min_len": 4, "tokens_to_suppress": names, "call": {"prefix_tokens": prefixes}}
    found = run(
        Generator,
        model,
        source_batch()[:3],
        search_strategy=strategy(SMALL.target_dictionary),
        **options,
    )
    for prefix, hypotheses in zip(prefixes, found):
        length = int(prefix.ne(PAD).sum())
        for tokens in (hypothesis["tokens"].tolist() for hypothesis in hypotheses):
            assert tokens[:length] == prefix[:length].tolist()
            assert tokens.index(EOS) >= 4 and 7 not in tokens[length:]


def test_diverse_groups_of_any_sentences_of_a_data_set():
    """fairseq takes the numbers of the sentences for places in the batch, which end in an IndexError."""
    model, source = tiny_model(), source_batch()

    def diverse(**more):
        strategy = search.DiverseBeamSearch(model.decoder.dictionary, 3, 0.5)
        generator = Generator([model], model.decoder.dictionary, beam_size=3, search_strategy=strategy)
        sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(dim=1)}, **more}
        return [[hypothesis["tokens"].tolist() for hypothesis in x] for x in generator.generate([], sample)]

    assert diverse(id=torch.tensor([907, 12, 400, 3])) == diverse()


def test_scores_that_are_no_numbers_are_refused():
    model = tiny_model()
    with torch.no_grad():
        model.decoder.output_projection.weight[5] = math.nan
    with pytest.raises(InputError, match="finite score.*NaN"):
        run(Generator, model, source_batch())


def test_a_least_length_above_the_limit_is_refused():
    with pytest.raises(InputError, match="--min-len 9 exceeds the maximum length 8"):
        run(Generator, tiny_model(), source_batch(), min_len=9, max_len_b=8)


def fairseq_transformer():
    options = Namespace(encoder_embed_dim=8, decoder_embed_dim=8, encoder_layers=1, decoder_layers=1)
    base_architecture(options)
    return TransformerModel.build_model(options, SMALL)


@pytest.mark.parametrize("model", [LunaModel, PeerTransformer])
def test_an_ensemble_with_fairseqs_model_scores_references_in_any_order(model):
    """Our models return no attention weights then, fairseq's do."""
    ours = build_perturbed(model, tiny_luna.OPTIONS, SMALL, torch.float32)
    other = fairseq_transformer()
    ours.make_generation_fast_(need_attn=False)
    sources, targets = map(batch, example())
    previous = torch.cat(
        [torch.full_like(targets[:, :1], SMALL.target_dictionary.eos()), targets[:, :-1]], dim=1
    )
    net_input = {"src_tokens": sources, "src_lengths": None, "prev_output_tokens": previous}
    sample = {"net_input": net_input, "target": targets}
    scorer = SequenceScorer(SMALL.target_dictionary)
    one, reverse = (scorer.generate(models, sample) for models in ([ours, other], [other, ours]))
    for (first,), (second,) in zip(one, reverse):
        torch.testing.assert_close(first["positional_scores"], second["positional_scores"])


class TestChoice:
    """The task builds the search for models of this package."""

    def build(self, *models, **args):
        task = TranslationTask(TranslationConfig(), SMALL.source_dictionary, SMALL.target_dictionary)
        return task.build_generator([*models], Namespace(**args))

    def test_our_models(self):
        assert type(self.build(tiny_model(task=SMALL), tiny_model(task=SMALL))) is Generator
        aligned = self.build(tiny_model(task=SMALL), print_alignment="soft")
        assert type(aligned) is AlignedGenerator and aligned.extract_alignment.__name__.endswith(
            "soft_alignment"
        )
        assert type(self.build(tiny_model(task=SMALL), score_reference=True)).__name__ == "SequenceScorer"

    def test_fairseqs_models(self):
        transformer = fairseq_transformer()
        assert type(self.build(transformer)) is SequenceGenerator
        assert type(self.build(tiny_model(task=SMALL), transformer)) is SequenceGenerator
