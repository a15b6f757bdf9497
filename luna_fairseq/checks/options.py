"""Checks of a command's options before it works: bounds of numbers, and combinations that would give a wrong
result without a word. A check yields what is wrong; a new one joins ``CHECKS``."""

import json
import os
import re
from argparse import Namespace
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Callable, FrozenSet, Iterator, List, Tuple

from luna_fairseq.checks.bounds import PROBABILITY, is_within
from luna_fairseq.checks.bounds import faults as out_of_bounds
from luna_fairseq.checks.model_options import model_name
from luna_fairseq.checks.names import check_groups, flat, nearest
from luna_fairseq.errors import InputError

OF_A_SOURCE = ("print_alignment", "replace_unk", "constraints")
_LANGUAGE_MODELLING = ("language_modeling", "streaming_lm")

Faults = Iterator[str]


class Given:
    """Parsed options as attributes. An option that the command does not have is None.

    Raises:
        AttributeError: neither fairseq nor this package declares an option of that name.
    """

    def __init__(self, args: Namespace):
        self.all = vars(args)
        self.trains = "max_update" in self.all
        # fairseq parses a command a second time for the options that were given, which then lacks these.
        names = ("beam", "nbest", "temperature", "min_len")
        has_generation = all(self.all.get(name) is not None for name in names)
        self.decodes = has_generation and not self.trains  # fairseq-hydra-train has them, too
        self.from_file = self.decodes and "buffer_size" not in self.all  # not fairseq-interactive

    def __getattr__(self, name: str) -> Any:
        if name in self.all or name in _declared_options():
            return self.all.get(name)
        raise AttributeError(f"no option is called {name}")


def _dataclasses() -> List[Any]:
    """Return the dataclasses of fairseq's groups of options and of everything registered."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    registries = [one["dataclass_registry"] for one in REGISTRIES.values()]
    registered = [MODEL_DATACLASS_REGISTRY, TASK_DATACLASS_REGISTRY, *registries]
    groups = [field.type for field in fields(FairseqConfig)]
    return [one for one in [*groups, *(x for r in registered for x in r.values())] if is_dataclass(one)]


@lru_cache(maxsize=None)
def _declared_options() -> FrozenSet[str]:
    """Return the names of all options that a dataclass declares, and of those that choose a dataclass."""
    from fairseq.registry import REGISTRIES

    names = {field.name for one in _dataclasses() for field in fields(one)}
    return frozenset({*names, *REGISTRIES, "task", "arch"})


def launched() -> int:
    """Return the number of processes that torchrun started, this one among them; 1 without torchrun."""
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def check_options(args: Namespace) -> None:
    """Raise InputError if a parsed option is out of its bounds, or would give a wrong result."""
    given = Given(args)
    for check in CHECKS:
        for fault in check(given):
            raise InputError(fault)


def check_config(config: Any) -> None:
    """Raise InputError for the configuration of fairseq-hydra-train: see :func:`check_options`. Unknown
    options are refused, too."""
    check_groups(config)
    check_options(flat(config))


def bounds(given: Given) -> Faults:
    """Numbers of the chosen model, task, criterion, optimizer and schedule, as far as they are ours."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    chosen = [
        MODEL_DATACLASS_REGISTRY.get(model_name(given.all)),
        TASK_DATACLASS_REGISTRY.get(given.task),
        *(one["dataclass_registry"].get(given.all.get(name)) for name, one in REGISTRIES.items()),
    ]
    for dataclass in chosen:
        if is_dataclass(dataclass) and dataclass.__module__.startswith("luna_fairseq."):
            yield from out_of_bounds(given.all, dataclass)


def label_smoothing(given: Given) -> Faults:
    """fairseq's criterion takes any number and minimises something that is no cross entropy."""
    value = given.label_smoothing
    if isinstance(value, (int, float)) and not is_within(value, PROBABILITY):
        yield f"--label-smoothing {value:g}: must be at least 0 and below 1"


def precision_of_int8(given: Given) -> Faults:
    """Yield a fault if 8-bit weights and half precision are both asked for."""
    overridden = re.search(r"""["']int8["']: *True""", str(given.all.get("model_overrides")))
    for name in ("fp16", "bf16"):
        half = given.all.get(name) or given.all.get(f"memory_efficient_{name}")
        if half and (overridden or given.all.get("int8")):
            yield f"--int8 and --{name} exclude each other: leave one of them out"


def metric(given: Given) -> Faults:
    """Without --eval-bleu, fairseq notices after an epoch that there is no BLEU, and saves nothing."""
    if given.trains and given.task == "translation" and not given.disable_validation:
        if given.best_checkpoint_metric == "bleu" and not given.eval_bleu:
            yield "--best-checkpoint-metric bleu needs --eval-bleu, without which no BLEU is measured"


def bleu_options(given: Given) -> Faults:
    """fairseq ignores an unknown name, so that BLEU is of another beam search."""
    from fairseq.dataclass.configs import GenerationConfig
    from fairseq.registry import REGISTRIES

    tokenizer = REGISTRIES["tokenizer"]["dataclass_registry"].get(given.eval_bleu_detok)
    for option, text, dataclass in (
        ("--eval-bleu-args", given.eval_bleu_args, GenerationConfig),
        ("--eval-bleu-detok-args", given.eval_bleu_detok_args, tokenizer),
    ):
        try:
            found = json.loads(text or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            yield f'{option} {text} is not JSON. Give names and values, such as {{"beam": 4}}'
            continue
        known = getattr(dataclass, "__dataclass_fields__", found)
        for name in found:
            if name not in known:
                yield f"{option}: there is no option {name}{nearest(name, known)}"


def widths(given: Given) -> Faults:
    """Embeddings that are shared with the output have its width; tokens are quantized at the inner width."""
    inner = given.decoder_embed_dim
    # Only language models embed at another width than the one they compute at.
    name = "embed" if "encoder_embed_dim" in given.all else "input"
    width, output = given.all.get(f"decoder_{name}_dim") or inner, given.decoder_output_dim or inner
    if (given.share_all_embeddings or given.share_decoder_input_output_embed) and width != output:
        yield (
            f"--decoder-output-dim {output} differs from --decoder-{name}-dim {width}: embeddings "
            "that are shared with the output have one width"
        )
    if name == "input" and given.quant_noise_pq and width != inner:
        yield (
            f"--quant-noise-pq quantizes tokens at --decoder-embed-dim {inner}: give no other "
            f"--decoder-input-dim ({width})"
        )


def alignments(given: Given) -> Faults:
    """Peers that compute no weights over the source have none to compare with alignments."""
    attention = given.cross_attention or "softmax"
    peer = model_name(given.all) == "peer_transformer"
    if str(given.criterion).endswith("_with_alignment") and peer and attention != "softmax":
        yield (
            f"--criterion {given.criterion} needs weights over the source, which {attention} attention does "
            "not compute: give another, or train with --cross-attention softmax"
        )


def prompts(given: Given) -> Faults:
    """Language models continue a prompt, which fairseq-generate reads line by line from eos blocks alone."""
    if not given.decodes or str(given.task) not in _LANGUAGE_MODELLING:
        return
    for name in OF_A_SOURCE:
        if getattr(given, name) is not None:
            yield f"--{name.replace('_', '-')} is for translation: a language model has no source"
    if given.from_file and given.sample_break_mode != "eos":
        yield (
            "fairseq-generate continues one prompt a line: give --task language_modeling "
            "--sample-break-mode eos, which reads the data line by line"
        )
    if given.from_file and given.add_bos_token:
        yield (
            "fairseq-generate takes the </s> of --add-bos-token for a part of the prompt: give the prompts "
            "to fairseq-interactive"
        )


def parts_of_a_text(given: Given) -> Faults:
    """fairseq-eval-lm prints the score of its first process; a stream cannot be divided."""
    if "context_window" not in given.all or given.trains:  # fairseq-hydra-train has it, too
        return
    processes, shards = max(given.distributed_world_size or 1, launched()), given.num_shards or 1
    if processes > 1:
        yield (
            f"--distributed-world-size {processes}, or torchrun: fairseq-eval-lm would print the score of "
            "the first process's part of the text: start one (--num-shards divides the text)"
        )
    if shards > 1 and given.task == "streaming_lm":
        yield f"--num-shards {shards}: --task streaming_lm reads the whole text in one go, leave it out"
    if given.all.get("post_process") and given.task == "streaming_lm":
        yield (
            "--post-process and --remove-bpe: --task streaming_lm cannot count words, which a segment's end "
            "may cut: leave them out, and raise the perplexity to the power of pieces a word"
        )


CHECKS: Tuple[Callable[[Given], Faults], ...] = (
    bounds,
    precision_of_int8,
    label_smoothing,
    metric,
    bleu_options,
    widths,
    alignments,
    prompts,
    parts_of_a_text,
)
