"""``train``: training speed of whole translation models, Luna's beside fairseq's Transformer of the same size."""

import argparse
from argparse import Namespace
from functools import partial
from typing import Any, Dict

import torch
from tqdm import tqdm

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.benchmark.measure import Form, Job, Settings, compare, count_steps
from luna_fairseq.benchmark.options import BatchSize, at_least, batch_size
from luna_fairseq.benchmark.report import Section
from luna_fairseq.models.luna import LunaModel

HELP = "training step of a whole translation model: Luna tied and untied beside fairseq's Transformer"
NOTES = (
    "Forward pass in training mode (dropout 0.1), label-smoothed cross entropy, backward pass; float32. The optimizer",
    "is left out: it would cost all models the same and draw the ratios towards 1. Batches of random tokens, source",
    "and target of the same length, without padding. tokens are the target's. Extra memory includes the gradients.",
)
PRESETS: Dict[str, Dict[str, int]] = {
    "base": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8},
    "small": {"layers": 3, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4},
}
TINY = {"layers": 1, "embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 2}
TRANSFORMER = "transformer"
# What each model has beyond its preset.
MODELS: Dict[str, Dict[str, Any]] = {
    TRANSFORMER: {},
    "luna-tied": {"untie_luna_kv": False},
    "luna-untied": {"untie_luna_kv": True},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    add = parser.add_argument
    add("--preset", choices=list(PRESETS), default="base", help="6+6 layers of 512, or 3+3 of 256 (default: base)")
    add(
        "--batch",
        type=batch_size,
        nargs="+",
        default=[BatchSize(32, 30)],
        metavar="NxT",
        help="sentences x tokens in each, several allowed (default: 32x30)",
    )
    add("--dictionary-size", type=at_least(8), default=32000, metavar="N", help="shared (default: 32000)")
    add("--projection-length", type=at_least(1), default=16, metavar="N", help="Luna's l (default: 16)")


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Time the training step of every model at every batch size."""
    results, tokens = [], []
    with tqdm(total=len(args.batch) * count_steps(len(MODELS), settings), leave=False) as progress:
        for batch in args.batch:
            sizes = model_sizes(PRESETS[args.preset], args.projection_length, batch)
            forms = [make_form(name, sizes, args.dictionary_size, batch, settings) for name in MODELS]
            results += compare({"batch": str(batch)}, forms, settings, progress)
            tokens += [batch.sentences * batch.tokens] * len(MODELS)
    size = ", ".join(f"{name} {value}" for name, value in PRESETS[args.preset].items())
    size += f", dictionary {args.dictionary_size} (all embeddings shared), l {args.projection_length}"
    return Section("train", (*NOTES, f"{args.preset}: {size}"), (TRANSFORMER,), results, "tokens", tokens)


def model_sizes(preset: Dict[str, int], projection_length: int, batch: BatchSize) -> Dict[str, Any]:
    """Options that all models have in common, under fairseq's names."""
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in preset.items()}
    positions = max(1024, batch.tokens)
    return {
        **sizes,
        "dropout": 0.1,
        "share_all_embeddings": True,
        "max_source_positions": positions,
        "max_target_positions": positions,
        "projection_length": projection_length,
    }


def make_form(name: str, sizes: Dict[str, Any], dictionary_size: int, batch: BatchSize, settings: Settings) -> Form:
    """The training step of the model ``name``, warmed up with a tiny model of that kind."""
    tiny_batch = BatchSize(1, 4)
    tiny_sizes = model_sizes(TINY, 2, tiny_batch)
    return Form(
        name,
        prepare=partial(prepare, name, sizes, dictionary_size, batch, settings),
        warm_up=partial(prepare, name, tiny_sizes, 8, tiny_batch, settings),
    )


def prepare(name: str, sizes: Dict[str, Any], dictionary_size: int, batch: BatchSize, settings: Settings) -> Job:
    """One training step of the model ``name``."""
    torch.manual_seed(settings.seed)
    task = make_task(dictionary_size)
    options = Namespace(**sizes, **MODELS[name])
    if name == TRANSFORMER:
        base_architecture(options)
    model = (TransformerModel if name == TRANSFORMER else LunaModel).build_model(options, task)
    model = model.to(settings.device).train()
    criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    return partial(step, model, criterion, make_sample(task, batch, settings))


def make_task(dictionary_size: int) -> TranslationTask:
    """A translation task with one dictionary of that size, its special symbols included."""
    dictionary = Dictionary()
    for i in range(dictionary_size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return TranslationTask(TranslationConfig(), dictionary, dictionary)


def make_sample(task: TranslationTask, batch: BatchSize, settings: Settings) -> Dict[str, Any]:
    """A batch as fairseq's translation dataset collates it, of random tokens [B, T], EOS last."""
    dictionary = task.target_dictionary
    first = dictionary.nspecial

    def sentences() -> torch.Tensor:
        tokens = torch.randint(first, len(dictionary), (batch.sentences, batch.tokens))
        tokens[:, -1] = dictionary.eos()
        return tokens.to(settings.device)

    source, target = sentences(), sentences()
    lengths = torch.full((batch.sentences,), batch.tokens, device=settings.device)
    net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target.roll(1, dims=1)}
    return {"net_input": net_input, "target": target, "ntokens": target.numel()}


def step(model: torch.nn.Module, criterion: torch.nn.Module, sample: Dict[str, Any]) -> None:
    """Forward, loss, backward; the gradients are dropped, as an optimizer's step would have used them."""
    loss, sample_size, _ = criterion(model, sample)
    (loss / sample_size).backward()
    model.zero_grad(set_to_none=True)
