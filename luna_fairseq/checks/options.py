"""Checks of a command's options before any work is done.

The checks find numbers that are out of bounds, and combinations of options with which fairseq would silently
give a wrong result. A check is a function that yields error messages. Add new checks to ``CHECKS``.
"""

import json
import os
import re
from argparse import Namespace
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Callable, FrozenSet, Iterator, List, Tuple

from luna_fairseq.checks.bounds import PROBABILITY, is_within
from luna_fairseq.checks.bounds import faults as out_of_bounds
from luna_fairseq.checks.model_options import complete, dataclass_of, model_name, plain_options
from luna_fairseq.checks.names import check_groups, flat, nearest
from luna_fairseq.errors import InputError

# Options of generation that need a source, which a language model does not have.
SOURCE_OPTIONS = ("print_alignment", "replace_unk", "constraints")
_LANGUAGE_MODELLING = ("language_modeling", "streaming_lm")

Faults = Iterator[str]


class ParsedOptions:
    """Parsed options of a command as attributes. An option that the command does not have is None.

    Args:
        args: parsed options.

    Attributes:
        all: dictionary of all parsed options.
        trains: True if the command trains a model.
        decodes: True if the command generates text.
        from_file: True if the command generates text from a data set, as fairseq-generate does.

    Raises:
        AttributeError: neither fairseq nor this package declares an option of that name.
    """

    def __init__(self, args: Namespace):
        self.all = vars(args)
        self.trains = "max_update" in self.all
        # fairseq parses a command line twice. The second result contains only the options that the user has
        # given, so these may be missing.
        names = ("beam", "nbest", "temperature", "min_len")
        has_generation = all(self.all.get(name) is not None for name in names)
        # The configuration of fairseq-hydra-train also has the options of generation.
        self.decodes = has_generation and not self.trains
        # Only fairseq-interactive has a buffer.
        self.from_file = self.decodes and "buffer_size" not in self.all

    def __getattr__(self, name: str) -> Any:
        if name in self.all or name in _declared_options():
            return self.all.get(name)
        raise AttributeError(f"no option is called {name}")


def _dataclasses() -> List[Any]:
    """Return the dataclasses of fairseq's groups of options and of all registered components."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    others = [registry["dataclass_registry"] for registry in REGISTRIES.values()]
    found = [field.type for field in fields(FairseqConfig)]
    for registry in (MODEL_DATACLASS_REGISTRY, TASK_DATACLASS_REGISTRY, *others):
        found += registry.values()
    return [dataclass for dataclass in found if is_dataclass(dataclass)]


@lru_cache(maxsize=None)
def _declared_options() -> FrozenSet[str]:
    """Return the names of all options: those that dataclasses declare, and those that choose a dataclass."""
    from fairseq.registry import REGISTRIES

    names = {field.name for dataclass in _dataclasses() for field in fields(dataclass)}
    return frozenset({*names, *REGISTRIES, "task", "arch"})


def count_processes() -> int:
    """Return the number of processes that torchrun has started; 1 without torchrun."""
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def check_options(args: Namespace) -> None:
    """Check the parsed options of a command.

    Args:
        args: parsed options.

    Raises:
        InputError: an option is out of its bounds, or a combination of options would give a wrong result.
    """
    given = ParsedOptions(args)
    for check in CHECKS:
        for fault in check(given):
            raise InputError(fault)


def check_config(config: Any) -> None:
    """Check the configuration of fairseq-hydra-train, including the names of its options.

    Args:
        config: configuration with groups of options.

    Raises:
        InputError: an option is unknown; or see :func:`check_options`.
    """
    check_groups(config)
    check_options(flat(config))


def check_numbers(given: ParsedOptions) -> Faults:
    """Check the bounds of all numbers of the chosen components, as far as they belong to this package.

    Components are the model, the task, the criterion, the optimizer and the schedule.

    Args:
        given: parsed options.
    """
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    chosen = [
        MODEL_DATACLASS_REGISTRY.get(model_name(given.all)),
        TASK_DATACLASS_REGISTRY.get(given.task),
        *(registry["dataclass_registry"].get(given.all.get(name)) for name, registry in REGISTRIES.items()),
    ]
    for dataclass in chosen:
        if is_dataclass(dataclass) and dataclass.__module__.startswith("luna_fairseq."):
            yield from out_of_bounds(given.all, dataclass)


def check_label_smoothing(given: ParsedOptions) -> Faults:
    """Check the bounds of ``--label-smoothing``.

    fairseq's criterion accepts any number, and then minimises something other than a cross entropy.

    Args:
        given: parsed options.
    """
    value = given.label_smoothing
    if isinstance(value, (int, float)) and not is_within(value, PROBABILITY):
        yield f"--label-smoothing {value:g}: must be at least 0 and below 1"


def check_int8_precision(given: ParsedOptions) -> Faults:
    """Check that 8-bit weights are not combined with half precision.

    Args:
        given: parsed options.
    """
    overridden = re.search(r"""["']int8["']: *True""", str(given.all.get("model_overrides")))
    for name in ("fp16", "bf16"):
        half = given.all.get(name) or given.all.get(f"memory_efficient_{name}")
        if half and (overridden or given.all.get("int8")):
            yield f"--int8 and --{name} cannot be combined. Leave one of them out"


def check_shortlist(given: ParsedOptions) -> Faults:
    """Check that ``--shortlist`` names a file, and that the command generates text.

    Args:
        given: parsed options.
    """
    path = given.all.get("shortlist")
    if not path:
        return
    if given.trains:
        yield "--shortlist restricts a trained model. Give it to fairseq-generate or fairseq-interactive"
    elif given.all.get("score_reference"):
        yield "--score-reference scores with the whole dictionary. Leave --shortlist out"
    elif not os.path.isfile(path):
        yield f"--shortlist {path} does not exist. Make it with luna-make-shortlist"


def check_metric(given: ParsedOptions) -> Faults:
    """Check that the metric of the best checkpoint is measured.

    Without ``--eval-bleu``, fairseq fails only after the first epoch, and has then saved nothing.

    Args:
        given: parsed options.
    """
    if given.trains and given.task == "translation" and not given.disable_validation:
        if given.best_checkpoint_metric == "bleu" and not given.eval_bleu:
            yield "--best-checkpoint-metric bleu needs --eval-bleu, without which no BLEU is measured"


def check_bleu_options(given: ParsedOptions) -> Faults:
    """Check the names in ``--eval-bleu-args`` and ``--eval-bleu-detok-args``.

    fairseq ignores unknown names, so that BLEU would be measured with another beam search.

    Args:
        given: parsed options.
    """
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


def check_widths(given: ParsedOptions) -> Faults:
    """Check that the widths of the decoder fit together.

    Embeddings that are shared with the output need the same width, and ``--quant-noise-pq`` needs the same
    width inside and outside the decoder.

    Args:
        given: parsed options.
    """
    inner = given.decoder_embed_dim
    # Only language models can have embeddings of another width than their layers.
    name = "embed" if "encoder_embed_dim" in given.all else "input"
    width, output = given.all.get(f"decoder_{name}_dim") or inner, given.decoder_output_dim or inner
    if (given.share_all_embeddings or given.share_decoder_input_output_embed) and width != output:
        yield (
            f"--decoder-output-dim {output} differs from --decoder-{name}-dim {width}. Shared embeddings "
            "need the same width"
        )
    if name == "input" and given.quant_noise_pq and width != inner:
        yield (
            f"--quant-noise-pq quantizes embeddings of the width --decoder-embed-dim {inner}. Leave "
            f"--decoder-input-dim {width} out"
        )


def check_alignments(given: ParsedOptions) -> Faults:
    """Check that the model computes the weights over the source that an alignment criterion needs.

    Args:
        given: parsed options.
    """
    attention = given.cross_attention or "softmax"
    peer = model_name(given.all) == "peer_transformer"
    if str(given.criterion).endswith("_with_alignment") and peer and attention != "softmax":
        yield (
            f"--criterion {given.criterion} needs weights over the source, which {attention} attention does "
            "not compute. Give another criterion, or --cross-attention softmax"
        )


def check_switches(given: ParsedOptions) -> Faults:
    """Check that the switches of the model have an effect on it.

    A switch belongs to one kind of attention. The metadata ``used_with`` of its dataclass field lists the
    options that choose this kind, with their values.

    Args:
        given: parsed options.
    """
    dataclass = dataclass_of(given.all) if given.trains else None
    if dataclass is None:
        return
    options = plain_options(complete(given.all))
    for switch in fields(dataclass):
        choices = switch.metadata.get("used_with")
        if choices is None or not options[switch.name]:
            continue
        choices = {name: value for name, value in choices.items() if name in dataclass.__dataclass_fields__}
        if any(options[name] == value for name, value in choices.items()):
            continue
        name = switch.name.replace("_", "-")
        needed = " or ".join(f"--{name.replace('_', '-')} {value}" for name, value in choices.items())
        if needed:
            yield f"--{name} has no effect without {needed}. Give that, or leave --{name} out"
        else:
            yield f"--{name} has no effect on a model of the kind {model_name(given.all)}. Leave it out"


def check_prompts(given: ParsedOptions) -> Faults:
    """Check the options with which a language model continues prompts.

    fairseq-generate reads one prompt per line only with ``--sample-break-mode eos``.

    Args:
        given: parsed options.
    """
    if not given.decodes or str(given.task) not in _LANGUAGE_MODELLING:
        return
    for name in SOURCE_OPTIONS:
        if getattr(given, name) is not None:
            yield f"--{name.replace('_', '-')} is for translation, but a language model has no source"
    if given.from_file and given.sample_break_mode != "eos":
        yield (
            "fairseq-generate needs one prompt per line. Give --task language_modeling --sample-break-mode "
            "eos, which reads the data line by line"
        )
    if given.from_file and given.add_bos_token:
        yield (
            "fairseq-generate mistakes the </s> of --add-bos-token for a part of the prompt. Give the "
            "prompts to fairseq-interactive"
        )


def check_divided_text(given: ParsedOptions) -> Faults:
    """Check that fairseq-eval-lm scores the whole text.

    With several processes, fairseq-eval-lm prints only the score of the first one. A stream cannot be
    divided.

    Args:
        given: parsed options.
    """
    # The configuration of fairseq-hydra-train also has a context window.
    if "context_window" not in given.all or given.trains:
        return
    processes, shards = max(given.distributed_world_size or 1, count_processes()), given.num_shards or 1
    if processes > 1:
        yield (
            f"fairseq-eval-lm with {processes} processes would print only the score of the first process's "
            "part of the text. Start one process (--num-shards divides the text)"
        )
    if shards > 1 and given.task == "streaming_lm":
        yield f"--num-shards {shards}: --task streaming_lm reads the whole text at once. Leave the option out"
    if given.all.get("post_process") and given.task == "streaming_lm":
        yield (
            "--task streaming_lm cannot count words, because a segment may end within a word. Leave "
            "--post-process and --remove-bpe out, and raise the perplexity to the power of pieces per word"
        )


CHECKS: Tuple[Callable[[ParsedOptions], Faults], ...] = (
    check_numbers,
    check_int8_precision,
    check_shortlist,
    check_label_smoothing,
    check_metric,
    check_bleu_options,
    check_widths,
    check_alignments,
    check_switches,
    check_prompts,
    check_divided_text,
)
