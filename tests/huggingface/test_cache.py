"""The cache of exported decoders: chunks of a text, padding, prefixes and second turns."""

import pytest
import torch
from every_kind import small_model
from tiny_luna import EOS, PAD, batch, sentences

pytest.importorskip("transformers")

from luna_fairseq.huggingface.conversion import convert, find_kind  # noqa: E402

DECODERS = [
    ("translation", "tied"),
    ("translation", "untied pre-norm"),
    ("translation", "softmax cross"),
    ("translation", "look-up diagonal decay"),
    ("translation", "look-up sentence diagonal"),
    ("causal LM", "tied"),
    ("causal LM", "untied"),
    ("causal LM", "decay"),
    ("causal LM", "learned"),
]
every_decoder = pytest.mark.parametrize(("kind", "variant"), DECODERS)
SEPARATOR = 4


def exported(kind, variant):
    model, dictionary = small_model(kind, variant)
    return convert(model, find_kind(model), dictionary).double()


def texts(lengths=(7, 3, 5), seed=0):
    """Return decoder inputs: EOS, then tokens without EOS, with a separator among them."""
    rows = [[EOS, *row[:-1]] for row in sentences(lengths, 19, seed)]
    return [[SEPARATOR if place == 2 else token for place, token in enumerate(row)] for row in rows]


def source_of(model):
    """Return the keyword arguments for a source of three sentences; empty for a language model."""
    if not model.config.is_encoder_decoder:
        return {}
    return {"encoder_outputs": model.get_encoder()(batch(sentences((9, 4, 6), 19), left=True))}


def read(model, ids, cache=None, **given):
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    return model(**{name: ids}, past_key_values=cache, use_cache=True, **given)


def logits_alone(model, rows):
    """Return the logits [T, V] of each text, computed at once and without padding."""
    found = []
    for number, row in enumerate(rows):
        source = source_of(model)
        for outputs in source.values():
            alone = {name: value[number : number + 1] for name, value in outputs.items()}
            source = {"encoder_outputs": type(outputs)(**alone)}
        found.append(read(model, torch.tensor([row]), **source).logits[0])
    return found


@every_decoder
@torch.no_grad()
def test_padding_in_chunks_changes_nothing(kind, variant):
    """Whole chunks of padding stand before, after and between the tokens of a text."""
    model, rows = exported(kind, variant), texts()
    source = source_of(model)
    alone = logits_alone(model, rows)
    between = batch([[x for token in row for x in (PAD, PAD, token)] for row in rows])
    for ids in (batch(rows, left=True, extra=4), batch(rows, extra=4), between):
        for size in (1, 3):
            cache, logits = None, []
            for chunk in ids.split(size, dim=1):
                out = read(model, chunk, cache, **source)
                cache = out.past_key_values
                logits.append(out.logits)
            found = torch.cat(logits, dim=1)
            for tokens, row, expected in zip(ids, found, alone):
                torch.testing.assert_close(row[tokens.ne(PAD)], expected, rtol=0, atol=1e-10)
            assert cache.seen.tolist() == [len(row) for row in rows]


@every_decoder
@torch.no_grad()
def test_a_chunk_of_padding_does_not_change_the_state(kind, variant):
    model, rows = exported(kind, variant), texts()
    source = source_of(model)
    before = read(model, batch(rows, left=True), **source).past_key_values
    masks = {"attention_mask": torch.zeros(3, 2, dtype=torch.long)} if kind == "causal LM" else {}
    chunks = [(torch.full((3, 2), PAD), {})] + [(torch.full((3, 2), SEPARATOR), masks)] * bool(masks)
    for chunk, mask in chunks:
        after = read(model, chunk, before, **source, **mask).past_key_values
        assert torch.equal(after.seen, before.seen) and after.length == before.length + 2
        assert after.memory is before.memory
        for one, other in zip(after.state.layers, before.state.layers):
            for x, y in zip(one, other):
                assert (x is None and y is None) or torch.equal(x, y)
        one, other = after.state.target, before.state.target
        assert other is None or all(map(torch.equal, one, other))


def generate(model, ids, source, cache=None, **options):
    """Continue the texts ``ids`` [B, T] with ``generate`` and return its output object."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    options = {"do_sample": False, "max_new_tokens": 6, "num_beams": 1, **options}
    options = {"suppress_tokens": [0, PAD], "return_dict_in_generate": True, **options}
    mask = "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    copies = {key: type(value)(**value) for key, value in source.items()}  # generate changes them
    given = {name: ids, mask: ids.ne(PAD).long(), **copies, **options}
    return model.generate(**given, **({} if cache is None else {"past_key_values": cache}))


@every_decoder
@pytest.mark.parametrize(("prefix", "beams"), [(3, 1), (6, 3)])
@torch.no_grad()
def test_generation_continues_from_a_prefix(kind, variant, prefix, beams):
    """Generation with the cache of a prefix equals generation without a cache, and the cache is unchanged."""
    model, ids = exported(kind, variant), batch(texts(), left=True)
    source = source_of(model)
    expected = generate(model, ids, source, num_beams=beams, use_cache=False).sequences
    cache = read(model, ids[:, :prefix], **source).past_key_values
    for _ in range(2):
        assert torch.equal(generate(model, ids, source, cache, num_beams=beams).sequences, expected)
        assert cache.get_seq_length() == prefix
    with pytest.raises(
        ValueError,
        match="^Expected the tokens after the 7 positions in past_key_values",
    ):
        generate(model, ids, source, read(model, ids, **source).past_key_values)


@every_decoder
@torch.no_grad()
def test_a_second_turn(kind, variant):
    """Generation continues from the cache of the first turn, in which some texts ended before others."""
    model, ids = exported(kind, variant), batch(texts(), left=True)
    source = source_of(model)
    length = ids.size(1) + 3

    def end_first_row(ids, scores):
        if ids.size(1) == length:
            scores[0] = scores[0].index_fill(0, torch.tensor([EOS]), 1e4)
        return scores

    options = {"eos_token_id": EOS, "logits_processor": [end_first_row]}
    first = generate(model, ids, source, **options)
    assert first.sequences[0, -1] == PAD
    more = torch.cat([first.sequences, batch(texts((4, 2, 3), 5), left=True)], dim=1)
    expected = generate(model, more, source, use_cache=False).sequences
    assert torch.equal(generate(model, more, source, first.past_key_values).sequences, expected)
    logits = read(model, more, **source).logits
    beyond = first.past_key_values.get_seq_length()
    found = read(model, more[:, beyond:], first.past_key_values, **source).logits
    there = more[:, beyond:].ne(PAD)
    torch.testing.assert_close(found[there], logits[:, beyond:][there], rtol=0, atol=1e-10)


@torch.no_grad()
def test_prompt_of_vectors():
    model, ids = exported("causal LM", "decay"), batch(texts((5, 5, 5)))
    vectors = model.get_input_embeddings()(ids)
    options = {"max_new_tokens": 6, "do_sample": False, "suppress_tokens": [0, PAD]}
    mask = {"attention_mask": ids.ne(PAD).long()}
    expected = model.generate(ids, **mask, **options)[:, ids.size(1) :]
    for cached in (True, False):
        found = model.generate(inputs_embeds=vectors, **mask, **options, use_cache=cached)
        assert torch.equal(found, expected)


@torch.no_grad()
def test_padding_may_exceed_learned_positions():
    model = exported("causal LM", "learned")
    text = torch.tensor([sentences((90,), 19)[0]])
    padded = torch.cat([torch.full((1, 8), PAD), text], dim=1)
    torch.testing.assert_close(read(model, padded).logits[:, 8:], read(model, text).logits)
    with pytest.raises(ValueError, match="has 91 tokens, the model's positions end at 90"):
        read(model, torch.full((1, 91), 5))


@pytest.mark.parametrize("kind", ["translation", "causal LM"])
@torch.no_grad()
def test_a_cache_of_a_beam_search_is_refused(kind):
    """Its hypotheses are those that the search would continue, not the returned sequence."""
    model, ids = exported(kind, "tied"), batch(texts(), left=True)
    source = source_of(model)
    first = generate(model, ids, source, num_beams=3)
    more = torch.cat([first.sequences, batch(texts((4, 2, 3), 5), left=True)], dim=1)
    with pytest.raises(ValueError, match="^Expected past_key_values of greedy search or sampling"):
        generate(model, more, source, first.past_key_values, num_beams=3)


def test_a_cache_of_another_batch_is_refused():
    model, ids = exported("causal LM", "tied"), batch(texts(), left=True)
    with pytest.raises(ValueError, match="^Expected past_key_values of 3 sequences, got 2"):
        generate(model, ids, {}, read(model, ids[:2, :3]).past_key_values)


@pytest.mark.parametrize("kind", ["translation", "causal LM"])
def test_a_cache_of_another_model_is_refused(kind):
    from transformers import DynamicCache

    model = exported(kind, "tied")
    ids = batch(texts())
    with pytest.raises(TypeError, match="got DynamicCache"):
        read(model, ids, DynamicCache(), **source_of(model))
    # Some versions of transformers refuse it themselves.
    with pytest.raises((TypeError, ValueError), match="got DynamicCache|support an instance of `Cache`"):
        model.generate(ids, past_key_values=DynamicCache(), max_new_tokens=2)
