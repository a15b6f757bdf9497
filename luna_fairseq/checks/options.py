"""Checks of a command's options before any work is done.

The checks find numbers that are out of bounds, and combinations of options with which fairseq would silently
give a wrong result. Each check is a generator of error messages, called faults. Add new checks to ``CHECKS``.
"""

import os
import re
from argparse import Namespace
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Tuple

from luna_fairseq.checks.bounds import find_faults as out_of_bounds
from luna_fairseq.checks.model_options import (
    add_defaults,
    fill_in_defaults,
    find_unused,
    is_ours,
    model_dataclass,
    model_name,
    plain_options,
)
from luna_fairseq.checks.names import check_groups, flatten_config
from luna_fairseq.errors import InputError

# Options of generation that need a source, which a language model does not have.
SOURCE_OPTIONS = ("print_alignment", "replace_unk", "constraints")
# Options of classifiers that have no effect with a value of another option: (option, value, names).
_UNUSED_IN_CLASSIFIERS = (
    (
        "layer_type",
        "transformer",
        (
            "anchor_strength",
            "encoder_projected_attention_heads",
            "encoder_projection_length",
            "fix_projection_length",
            "local_parts",
            "untie_luna_kv",
        ),
    ),
    ("use_p", True, ("sen_rep_type",)),
)
# Folder with the second sequences of the pairs of --task lra-text.
_PAIRS = "src1-bin"
_LANGUAGE_MODELLING = ("language_modeling", "streaming_lm")

Faults = Iterator[str]


class ParsedOptions:
    """Options of a command as attributes. Options that the command does not have are None.

    An attribute access raises AttributeError if neither fairseq nor this package declares such an option.

    Args:
        args: namespace returned by the command's argument parser.

    Attributes:
        all: dictionary of all parsed options.
        trains: True if the command trains a model.
        decodes: True if the command generates text.
        from_file: True if the command generates text from binarized data, like fairseq-generate.
    """

    def __init__(self, args: Namespace):
        self.all = vars(args)
        self.trains = "max_update" in self.all
        # fairseq parses a command line twice. The second result has only the options that the user has given,
        # so that these options may be missing.
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
    """Return the option dataclasses of fairseq and of all registered models, tasks and other components."""
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
    """Return the names of all options of fairseq and this package, such as "dropout" and "arch"."""
    from fairseq.registry import REGISTRIES

    names = {field.name for dataclass in _dataclasses() for field in fields(dataclass)}
    return frozenset({*names, *REGISTRIES, "task", "arch"})


def count_processes() -> int:
    """Return the number of processes that torchrun has started, or 1 without torchrun."""
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def check_options(args: Namespace) -> None:
    """Raise InputError if any check finds a fault in the parsed options of a command."""
    options = ParsedOptions(args)
    for check in CHECKS:
        for fault in check(options):
            raise InputError(fault)


def check_config(config: Any) -> None:
    """Raise InputError if a fairseq-hydra-train configuration is invalid or contains an unknown option."""
    check_groups(config)
    check_options(flatten_config(config))


def check_numbers(options: ParsedOptions) -> Faults:
    """Yield an error for each numeric option of this package that is out of bounds."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    chosen = [
        MODEL_DATACLASS_REGISTRY.get(model_name(options.all)),
        TASK_DATACLASS_REGISTRY.get(options.task),
        *(registry["dataclass_registry"].get(options.all.get(name)) for name, registry in REGISTRIES.items()),
    ]
    for dataclass in chosen:
        if is_dataclass(dataclass) and is_ours(dataclass):
            yield from out_of_bounds(options.all, dataclass)


def check_int8_precision(options: ParsedOptions) -> Faults:
    """Yield an error if 8-bit weights (``--int8``) are combined with --fp16 or --bf16."""
    overridden = re.search(r"""["']int8["']: *True""", str(options.all.get("model_overrides")))
    for name in ("fp16", "bf16"):
        half = options.all.get(name) or options.all.get(f"memory_efficient_{name}")
        if half and (overridden or options.all.get("int8")):
            yield f"--int8 and --{name} cannot be combined. Remove one of them"


def check_shortlist(options: ParsedOptions) -> Faults:
    """Yield an error if the ``--shortlist`` file is missing, or if the command cannot use a shortlist."""
    path = options.all.get("shortlist")
    if not path:
        return
    if options.trains:
        yield "--shortlist restricts a trained model. Give it to fairseq-generate or fairseq-interactive"
    elif options.all.get("score_reference"):
        yield "--score-reference scores with the whole dictionary. Leave --shortlist out"
    elif options.all.get("task") == "translation_from_pretrained_bart":
        yield "--task translation_from_pretrained_bart has its own search. Leave --shortlist out"
    elif not os.path.isfile(path):
        yield f"--shortlist {path} does not exist. Make it with luna-make-shortlist"


def check_widths(options: ParsedOptions) -> Faults:
    """Yield an error if the input, inner and output widths of the decoder are incompatible.

    Shared input and output embeddings must have the same width. With ``--quant-noise-pq``, embeddings must be
    as wide as the layers.
    """
    values = plain_options(add_defaults(options.all))
    # fairseq's Transformer parses some widths as text.
    inner = int(values.get("decoder_embed_dim") or values.get("encoder_embed_dim") or 0)
    # Only language models can have embeddings whose width differs from that of their layers.
    name = "embed" if "encoder_embed_dim" in values else "input"
    width, output = (int(values.get(f"decoder_{key}_dim") or inner) for key in (name, "output"))
    if (options.share_all_embeddings or options.share_decoder_input_output_embed) and width != output:
        yield (
            f"--decoder-output-dim {output} differs from --decoder-{name}-dim {width}. Shared embeddings "
            "need the same width"
        )
    if name == "input" and options.quant_noise_pq and width != inner and not values.get("adaptive_input"):
        yield (
            f"--quant-noise-pq quantizes embeddings of the width --decoder-embed-dim {inner}. Leave "
            f"--decoder-input-dim {width} out"
        )


def check_alignments(options: ParsedOptions) -> Faults:
    """Yield an error if an alignment criterion needs attention weights that the model does not compute."""
    attention = add_defaults(options.all).get("cross_attention")
    peer = model_name(options.all) == "peer_transformer"
    if str(options.criterion).endswith("_with_alignment") and peer and attention != "softmax":
        yield (
            f"--criterion {options.criterion} needs weights over the source, which {attention} attention "
            "does not compute. Use another criterion, or --cross-attention softmax"
        )


def check_switches(options: ParsedOptions) -> Faults:
    """Yield an error for each model option without effect.

    Values of the preset of ``--arch`` are accepted.
    """
    dataclass = model_dataclass(options.all) if options.trains else None
    if dataclass is None:
        return
    defaults, values = _preset_and_values(options, dataclass)
    complete = fill_in_defaults(dict(values), dataclass)
    for name, needs in find_unused(complete).items():
        flag = _option_flag(name)
        if complete[name] == fill_in_defaults({**values, name: defaults[name]}, dataclass)[name]:
            continue
        if False in needs.values():
            yield f"{flag} has no effect with {_option_flag(*needs)}. Leave one of them out"
        elif needs:
            needed = " or ".join(_option_flag(*item) for item in needs.items())
            yield f"{flag} has no effect without {needed}. Give that, or leave {flag} out"
        else:
            yield f"{flag} has no effect on a model of the kind {model_name(options.all)}. Leave it out"


def check_scalar_noise(options: ParsedOptions) -> Faults:
    """Yield an error if fairseq cannot train the model with ``--quant-noise-scalar``."""
    dataclass = model_dataclass(options.all) if options.trains else None
    if dataclass is None or not options.quant_noise_scalar:
        return
    from torch.cuda import is_available  # not needed by commands without torch

    flag = _option_flag("quant_noise_scalar", options.quant_noise_scalar)
    _, values = _preset_and_values(options, dataclass)
    names = {field.name for field in fields(dataclass)}
    # Masked language models always learn their positions, and have no option for it.
    is_masked_lm = "max_positions" in names and "encoder_learned_pos" not in names
    is_learned = is_masked_lm or values.get("encoder_learned_pos") or values.get("decoder_learned_pos")
    if is_learned and not values.get("no_token_positional_embeddings"):
        yield f"{flag} does not work with learned positions, which fairseq cannot quantize. Leave it out"
    elif options.cpu or not is_available():
        yield f"{flag} needs a GPU, because fairseq quantizes on no other device. Leave it out"


def check_classifiers(options: ParsedOptions) -> Faults:
    """Yield an error for each option of ``--arch lra`` that differs from the preset and has no effect."""
    if not options.trains or model_name(options.all) != "lra":
        return
    defaults, values = _preset_and_values(options, model_dataclass(options.all))
    for other, value, names in _UNUSED_IN_CLASSIFIERS:
        for name in names if values[other] == value else ():
            if values[name] != defaults[name]:
                shown = _option_flag(other, value)
                yield f"{_option_flag(name)} has no effect with {shown}. Leave one of them out"


def _preset_and_values(options: ParsedOptions, dataclass: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the model options of the preset of ``--arch``, and the values that all options have."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    preset = Namespace()
    ARCH_CONFIG_REGISTRY[options.arch](preset)
    defaults = {**plain_options(dataclass()), **vars(preset)}
    return defaults, {**defaults, **plain_options(options.all)}


def _option_flag(name: str, value: Any = True) -> str:
    """Return an option as on the command line, such as "--attention softmax" or, for True, "--use-p"."""
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"


def check_prompts(options: ParsedOptions) -> Faults:
    """Yield an error for each option with which a language model cannot continue a prompt.

    fairseq-generate reads one prompt per line only with ``--sample-break-mode eos``.
    """
    if not options.decodes or str(options.task) not in _LANGUAGE_MODELLING:
        return
    for name in SOURCE_OPTIONS:
        if getattr(options, name) is not None:
            yield f"--{name.replace('_', '-')} is for translation, but a language model has no source"
    if options.from_file and options.sample_break_mode != "eos":
        yield (
            "fairseq-generate needs one prompt per line. Give --task language_modeling --sample-break-mode "
            "eos, which reads the data line by line"
        )
    if options.from_file and options.add_bos_token:
        yield (
            "fairseq-generate mistakes the </s> of --add-bos-token for a part of the prompt. Give the "
            "prompts to fairseq-interactive"
        )


def check_divided_text(options: ParsedOptions) -> Faults:
    """Yield an error for each option with which fairseq-eval-lm would give a wrong score.

    - Several processes: only the score of the first process's part of the text would be printed.
    - ``--num-shards`` with ``--task streaming_lm``: the task must read the whole text at once.
    - ``--post-process`` with ``--task streaming_lm``: the task cannot count words.
    """
    # The configuration of fairseq-hydra-train also has a context window.
    if "context_window" not in options.all or options.trains:
        return
    processes, shards = max(options.distributed_world_size or 1, count_processes()), options.num_shards or 1
    if processes > 1:
        yield (
            f"fairseq-eval-lm with {processes} processes would print only the score of the first process's "
            "part of the text. Start one process (--num-shards divides the text)"
        )
    if shards > 1 and options.task == "streaming_lm":
        yield f"--num-shards {shards}: --task streaming_lm reads the whole text at once. Remove the option"
    if options.all.get("post_process") and options.task == "streaming_lm":
        yield (
            "--task streaming_lm cannot count words, because a segment may end within a word. Remove "
            "--post-process and --remove-bpe, and raise the perplexity to the power of pieces per word"
        )


def check_streams(options: ParsedOptions) -> Faults:
    """Yield an error if a training with ``--task streaming_lm`` lacks a batch size or may repeat a batch.

    A repeated batch would be read with a state that already contains the batch.
    """
    if not options.trains or options.task != "streaming_lm":
        return
    if options.amp and options.amp_batch_retries != 0:
        yield (
            "--amp repeats a batch whose gradients overflow, but --task streaming_lm can read a batch only "
            "once. Give --amp-batch-retries 0"
        )
    if options.batch_size is None:
        yield (
            "--task streaming_lm trains on --batch-size streams of text, and ignores --max-tokens. Give "
            "--batch-size"
        )


def check_checkpointing(options: ParsedOptions) -> Faults:
    """Yield an error if PyTorch's DDP would mark a checkpointed parameter ready more than once, and fail."""
    processes = max(options.distributed_world_size or 1, count_processes())
    values = plain_options(add_defaults(options.all))
    backend = values.get("ddp_backend")
    uses_ddp = options.trains and processes > 1 and backend in ("c10d", "pytorch_ddp")
    if not (uses_ddp and options.checkpoint_activations):
        return
    several = (values.get("encoder_layers") or 0) > 1
    is_layerwise = (values.get("attention"), values.get("linformer_sharing")) == ("linformer", "layerwise")
    causes = {
        # DDP takes checkpointed parameters for unused and marks them ready before the backward pass.
        "--find-unused-parameters": options.find_unused_parameters,
        "--tie-layer-weights": values.get("tie_layer_weights") and several,
        "--linformer-sharing layerwise": is_layerwise and several,
        f"--length-groups {options.length_groups}": (options.length_groups or 1) > 1,
        "pairs of sequences": options.task == "lra-text" and os.path.isdir(f"{options.data}/{_PAIRS}"),
    }
    for cause in filter(causes.get, causes):
        yield (
            f"--checkpoint-activations with {cause} does not work with --ddp-backend {backend} in "
            f"{processes} processes. Use --ddp-backend legacy_ddp"
        )


CHECKS: Tuple[Callable[[ParsedOptions], Faults], ...] = (
    check_numbers,
    check_int8_precision,
    check_shortlist,
    check_widths,
    check_alignments,
    check_classifiers,
    check_switches,
    check_scalar_noise,
    check_prompts,
    check_divided_text,
    check_streams,
    check_checkpointing,
)
