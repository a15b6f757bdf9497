"""``decode``: beam search with whole translation models, Luna's beside fairseq's Transformer of the same size."""

import argparse
from functools import partial
from typing import Any, Dict, List

import torch

from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.benchmark.heads import relative_rms
from luna_fairseq.benchmark.measure import Case, Form, Job, Settings, compare_cases
from luna_fairseq.benchmark.models import (
    PRESETS,
    TINY,
    TRANSFORMER,
    Kind,
    add_projection_length,
    add_size_options,
    build_translator,
    describe,
    luna_kinds,
    make_task,
    model_sizes,
    random_sentences,
)
from luna_fairseq.benchmark.options import MODEL_DTYPES, BatchSize, at_least, select
from luna_fairseq.benchmark.report import Section
from luna_fairseq.errors import InputError

HELP = "beam search: Luna tied and untied beside fairseq's Transformer"
NOTES = (
    "fairseq's SequenceGenerator and models prepared as fairseq-generate prepares them, with random weights. Every",
    "hypothesis has exactly T tokens, EOS included, and so has every source sentence: EOS is forbidden before and",
    "forced there. Before anything is timed, decoding token by token was compared with the decoder on whole sentences.",
)
CHECKED_LENGTH = 9
TOLERANCE = 1e-4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    add_size_options(parser)
    add_projection_length(parser)
    add = parser.add_argument
    lengths = [30, 250]
    add("--lengths", type=at_least(2), nargs="+", default=lengths, metavar="T", help=f"(default: {lengths})")
    add("--batch", type=at_least(1), default=1, metavar="N", help="sentences (default: 1)")
    add("--beam", type=at_least(1), default=5, metavar="N", help="hypotheses of each (default: 5)")
    add("--dtype", choices=list(MODEL_DTYPES), default="float32", help="of the parameters (default: float32)")


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Check that decoding in steps is right, then time every model at every length."""
    if args.beam > args.dictionary_size - 1:
        raise InputError(f"--beam {args.beam} needs a larger --dictionary-size than {args.dictionary_size}")
    kinds = select({TRANSFORMER: Kind(), **luna_kinds(args.projection_length)}, args.without)
    preset = PRESETS[args.preset]
    for name, kind in kinds.items():
        check_steps(name, build(kind, preset, args.dictionary_size, CHECKED_LENGTH, "float32", settings), settings)
    cases: List[Case] = []
    for length in args.lengths:
        batch = BatchSize(args.batch, length)
        forms = [
            Form(
                name,
                prepare=partial(prepare, kind, preset, args.dictionary_size, batch, args.beam, args.dtype, settings),
                warm_up=partial(prepare, kind, TINY, 12, BatchSize(1, 4), 2, args.dtype, settings),
            )
            for name, kind in kinds.items()
        ]
        cases.append(({"sentences": args.batch, "T": length}, forms))
    results = compare_cases(cases, settings)
    peers = [TRANSFORMER] if TRANSFORMER in kinds else []
    notes = (*NOTES, f"{args.preset}: {describe(preset, args.dictionary_size)}, beam {args.beam}, {args.dtype}")
    return Section("decode", notes, peers, results, "T", (), "sentences", [args.batch] * len(results))


def build(kind: Kind, preset: Dict[str, int], dictionary_size: int, length: int, dtype: str, settings: Settings) -> Any:
    """A model with random weights, in evaluation mode."""
    torch.manual_seed(settings.seed)
    # Positions are counted from behind the padding symbol, and the generator stops one before the last.
    model = build_translator(kind, model_sizes(preset, max(1024, length + 2)), dictionary_size)
    return model.to(settings.device, MODEL_DTYPES[dtype]).eval()


def prepare(
    kind: Kind,
    preset: Dict[str, int],
    dictionary_size: int,
    batch: BatchSize,
    beam: int,
    dtype: str,
    settings: Settings,
) -> Job:
    """One batch translated by beam search."""
    model = build(kind, preset, dictionary_size, batch.tokens, dtype, settings)
    dictionary = make_task(dictionary_size).target_dictionary
    model.make_generation_fast_(beamable_mm_beam_size=beam, need_attn=False)
    # Both count without EOS.
    length = batch.tokens - 1
    generator = SequenceGenerator([model], dictionary, beam_size=beam, max_len_a=0, max_len_b=length, min_len=length)
    torch.manual_seed(settings.seed)  # the same batch for every model
    tokens = random_sentences(dictionary, batch, settings.device)
    lengths = torch.full((batch.sentences,), batch.tokens, device=settings.device)
    return partial(translate, generator, {"net_input": {"src_tokens": tokens, "src_lengths": lengths}})


def translate(generator: SequenceGenerator, sample: Dict[str, Any]) -> None:
    """Generate. Raises InputError when a hypothesis is not as long as the source sentence."""
    expected = sample["net_input"]["src_tokens"].size(1)
    for hypotheses in generator.generate([], sample):
        for hypothesis in hypotheses:
            if len(hypothesis["tokens"]) != expected:
                raise InputError(f"a hypothesis has {len(hypothesis['tokens'])} tokens instead of {expected}")


@torch.no_grad()
def check_steps(name: str, model: Any, settings: Settings) -> None:
    """Raise InputError when decoding token by token gives other logits than the decoder on a whole sentence."""
    dictionary = model.decoder.dictionary
    batch = BatchSize(2, CHECKED_LENGTH)
    source, target = (random_sentences(dictionary, batch, settings.device) for _ in range(2))
    encoded = model.encoder(source, src_lengths=source.ne(dictionary.pad()).sum(dim=1))
    whole = model.decoder(target, encoder_out=encoded)[0]  # [B, T, V]
    state: Dict[str, Any] = {}
    steps = [
        model.decoder(target[:, : t + 1], encoder_out=encoded, incremental_state=state)[0]
        for t in range(batch.tokens)
    ]
    error = relative_rms(torch.cat(steps, dim=1), whole)
    if not error <= TOLERANCE:
        raise InputError(
            f"{name} is not timed because it is wrong: its logits in decoding differ from those for whole sentences by "
            f"{error:.1e} (relative RMS, {TOLERANCE:.0e} is allowed)"
        )
