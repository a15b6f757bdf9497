"""Options that cannot be, found once, before any work. A check yields what is wrong with the options of all
groups, of which a command has some only; a new one joins CHECKS."""

import ast
import importlib.util
import json
import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple

import torch

from luna_fairseq.checks.model_options import model_name
from luna_fairseq.checks.names import check_groups, flat, nearest
from luna_fairseq.checks.same_training import KINDS
from luna_fairseq.errors import InputError

# (names, what a value must be, in words). Not of every name: --base-layers 0 means none of these.
_VALUES: Tuple[Tuple[str, Callable[[float], bool], str], ...] = (
    (
        r".*(dropout|layerdrop|label_smoothing)|mask_prob|leave_unmasked_prob|random_token_prob",
        lambda x: 0 <= x <= 1,
        "a probability is between 0 and 1",
    ),
    (
        r"(en|de)coder_(\w+_)?(embed_dim|attention_heads)|(max_tokens|batch_size|update_freq)(_valid)?|beam"
        r"|softmax_batch|mask_multiple_length",
        lambda x: x >= 1,
        "must be at least 1",
    ),
    (r"clip_norm|(en|de)coder_layers|num_workers|prefix_size", lambda x: x >= 0, "must be at least 0"),
    (r"sampling_topp", lambda x: x <= 1, "a probability is at most 1"),
    (r"(fixed_validation_)?seed", lambda x: 0 <= x < 2**32, "must be at least 0 and below 2 to the 32nd"),
)
# Criterions of which all is known that validation reports.
_PLAIN = {"cross_entropy", "label_smoothed_cross_entropy", "masked_lm", "adaptive_loss"}
OF_A_SOURCE = ("print_alignment", "replace_unk", "constraints")
_LANGUAGE_MODELLING = ("language_modeling", "streaming_lm")
_METRICS = {"loss", "nll_loss", "ppl", "wps", "ups", "wpb", "bsz", "num_updates"}


class Given:
    """The parsed options as attributes: None for one that the command does not have."""

    def __init__(self, args: Namespace):
        self.all = vars(args)
        self.trains = "max_update" in self.all
        # Not where a command is parsed a second time for what was given alone.
        names = ("beam", "nbest", "temperature", "min_len")
        given = all(self.all.get(name) is not None for name in names)
        self.decodes = given and not self.trains  # hydra's training has them, too
        self.from_file = self.decodes and "buffer_size" not in self.all  # not fairseq-interactive

    def __getattr__(self, name: str) -> Any:
        return self.all.get(name)


Faults = Iterator[str]


def launched() -> int:
    """How many processes torchrun started, of which this is one; 1 if it did not."""
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def check_options(args: Namespace) -> None:
    """Raise InputError for a parsed option that cannot be meant. --num-shards of fairseq-generate becomes
    what fairseq reads, and a --replace-unk without a file what it means."""
    given = Given(args)
    for check in CHECKS:
        for fault in check(given):
            raise InputError(fault)
    if given.from_file and (given.num_shards or 1) > 1:
        args.distributed_world_size, args.distributed_rank = args.num_shards, args.shard_id or 0
    if given.decodes and args.replace_unk == "@@ ":  # what fairseq makes of it without a file
        args.replace_unk = ""


def check_config(config: Any) -> None:
    """Raise InputError for an option of fairseq-hydra-train's configuration that is unknown, or cannot be
    meant."""
    check_groups(config)
    check_options(flat(config))


def values(given: Given) -> Faults:
    """Probabilities, numbers of things, what is not negative, names that would be interpolated."""
    for name, several in given.all.items():
        for value in several if isinstance(several, (list, tuple)) else (several,):
            if isinstance(value, str):
                # A whole one is a default of fairseq's, filled in later.
                if "${" in value and not re.fullmatch(r"\$\{[\w.]+\}", value):
                    yield f"{value}: fairseq replaces what begins with ${{, so no name can hold it"
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                for names, good, words in _VALUES:
                    if re.fullmatch(names, name) and not good(value):
                        said = value if isinstance(value, int) else f"{value:g}"
                        yield f"--{name.replace('_', '-')} {said}: {words}"


def device(given: Given) -> Faults:
    """What needs a GPU or a TPU."""
    gpu = torch.cuda.is_available()
    if given.trains and (given.fp16 or given.memory_efficient_fp16) and (given.cpu or not gpu):
        # Its trainer moves a number to the GPU when gradients overflow, which they do in every training.
        yield "--fp16 needs a GPU: --bf16 works on a CPU, too"
    if (given.quant_noise_scalar or 0) > 0 and not gpu:
        yield (
            "--quant-noise-scalar needs a GPU, on which fairseq quantizes: leave it out, or give "
            "--quant-noise-pq, which works on a CPU, too"
        )
    if given.profile and given.trains and not gpu:
        yield "--profile needs a GPU, whose profiler it starts: leave it out"
    # fairseq sets it by itself for --bf16 on a CPU, which `processes` takes back.
    if given.tpu and not given.bf16 and importlib.util.find_spec("torch_xla") is None:
        yield "--tpu needs the package torch_xla, which is not here: leave it out"


def precision_of_int8(given: Given) -> Faults:
    """Yield a fault if 8-bit weights and half precision are both asked for."""
    overridden = re.search(r"""["']int8["']: *True""", str(given.all.get("model_overrides")))
    for name in ("fp16", "bf16"):
        half = given.all.get(name) or given.all.get(f"memory_efficient_{name}")
        if half and (overridden or given.all.get("int8")):
            yield f"--int8 and --{name} exclude each other: leave one of them out"


def metric(given: Given) -> Faults:
    """--best-checkpoint-metric that validation will not have."""
    wanted = given.best_checkpoint_metric
    if not given.trains or wanted is None or given.disable_validation:
        return
    if wanted == "bleu" and given.task == "translation" and not given.eval_bleu:
        yield "--best-checkpoint-metric bleu needs --eval-bleu, without which no BLEU is measured"
    known = _METRICS | ({"accuracy", "n_correct", "total"} if given.report_accuracy else set())
    known |= {"bleu"} if given.eval_bleu else set()
    known -= {"nll_loss"} if given.criterion == "masked_lm" else set()
    if given.criterion in _PLAIN and wanted not in known:
        yield (
            f"--best-checkpoint-metric {wanted}: validation with --criterion {given.criterion} and these "
            f"options has {', '.join(sorted(known & {'loss', 'nll_loss', 'ppl', 'accuracy', 'bleu'}))}"
        )


def masking(given: Given) -> Faults:
    """Of fairseq's masked_lm."""
    from fairseq.data.encoders import BPE_REGISTRY

    if given.mask_prob is not None and not 0 < given.mask_prob < 1:
        yield f"--mask-prob {given.mask_prob:g}: must be above 0 and below 1"
    rest = (given.leave_unmasked_prob or 0) + (given.random_token_prob or 0)
    if not 0 <= rest <= 1:
        yield f"--leave-unmasked-prob and --random-token-prob are {rest:g} together: at most 1"
    if given.mask_whole_words and not hasattr(BPE_REGISTRY.get(given.bpe), "is_beginning_of_word"):
        yield (
            "--mask-whole-words needs pieces that begin words: give --bpe sentencepiece or another "
            "with its files"
        )


def widths(given: Given) -> Faults:
    """A shared matrix has one width, and fairseq quantizes at another place than it embeds."""
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


def adaptive_softmax(given: Given) -> Faults:
    """It and its criterion need each other. (One of another name may be a form of that one; fairseq's older
    models, without a dataclass, have a cutoff always and heed it with that criterion alone.)"""
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    cutoff, criterion = given.adaptive_softmax_cutoff, given.criterion
    heeded = cutoff and model_name(given.all) in MODEL_DATACLASS_REGISTRY
    if given.trains and heeded and criterion in ("cross_entropy", "label_smoothed_cross_entropy"):
        yield f"--adaptive-softmax-cutoff needs --criterion adaptive_loss, not {criterion}"
    if criterion == "adaptive_loss" and not cutoff:
        yield (
            "--criterion adaptive_loss needs a model with adaptive softmax: give --adaptive-softmax-cutoff, "
            "which models with a decoder have, or another criterion"
        )


def alignments(given: Given) -> Faults:
    """Those that a training reads, and those that its criterion learns."""
    if given.trains and given.load_alignments and isinstance(given.data, str):
        folder, split = Path(given.data.split(os.pathsep)[0]), given.train_subset
        if folder.is_dir() and not list(folder.glob(f"{split}.align.*")):
            yield (
                f"--load-alignments: {folder} has no {split}.align.*: fairseq-preprocess makes it with "
                "--align-suffix"
            )
    attention = given.cross_attention or "softmax"
    peer = model_name(given.all) == "peer_transformer"
    if str(given.criterion).endswith("_with_alignment") and peer and attention != "softmax":
        yield (
            f"--criterion {given.criterion} needs weights over the source, which {attention} attention does "
            "not compute: give another, or train with --cross-attention softmax"
        )


def written_options(given: Given) -> Faults:
    """Options that are JSON or Python."""
    from fairseq.dataclass.configs import GenerationConfig
    from fairseq.registry import REGISTRIES

    json_, python = (json.loads, "JSON"), (ast.literal_eval, "a Python dictionary")
    tokenizer = REGISTRIES["tokenizer"]["dataclass_registry"].get(given.eval_bleu_detok)
    for option, text, (read, kind), known in (
        ("--eval-bleu-args", given.eval_bleu_args, json_, GenerationConfig),
        ("--eval-bleu-detok-args", given.eval_bleu_detok_args, json_, tokenizer),
        ("--optimizer-overrides", given.optimizer_overrides, python, None),
        ("--model-overrides", given.model_overrides, python, None),
    ):
        try:
            found = {} if text is None else read(text)
        except (ValueError, SyntaxError):
            found = None
        if not isinstance(found, dict):
            yield f'{option} {text} is not {kind}, such as {{"name": 4}}'
            continue
        fields = getattr(known, "__dataclass_fields__", None) or found
        for name in found:
            if name not in fields:
                yield f"{option}: there is no option {name}{nearest(name, fields)}"


def training(given: Given) -> Faults:
    """What an optimizer or a log is asked for."""
    if not given.trains:
        return
    if given.log_interval == 0:
        yield "--log-interval 0: must be at least 1"
    if isinstance(given.adam_betas, str):
        try:
            first, second = ast.literal_eval(given.adam_betas)
            good = 0 <= first < 1 and 0 <= second < 1
        except (ValueError, SyntaxError, TypeError):
            good = False
        if not good:
            yield f"--adam-betas {given.adam_betas}: give two numbers from 0 to below 1, as '(0.9, 0.98)'"


def decoding(given: Given) -> Faults:
    """Of fairseq-generate and fairseq-interactive."""
    if not given.decodes:
        return
    if KINDS.get(given.task, "translation") not in ("translation", "language modelling"):
        yield f"--task {given.task} writes no text: fairseq-validate measures its models"
        return
    if (given.retain_iter_history or given.print_step) and not str(given.task).endswith("_lev"):
        yield (
            "--retain-iter-history and --print-step are for models that refine a whole sentence (--task "
            "translation_lev)"
        )
    if given.sampling and given.nbest != given.beam:
        yield f"--sampling needs --nbest {given.beam}, as many as --beam: each is a sample"
    if not given.temperature > 0:
        yield f"--temperature {given.temperature:g}: must be above 0"
    if not given.max_len_a and given.min_len > given.max_len_b:
        yield f"--min-len {given.min_len} is above --max-len-b {given.max_len_b}, the longest output"
    if given.constraints and given.from_file:
        yield (
            "fairseq-generate reads no constraints: give them to fairseq-interactive, behind a tab after "
            "each sentence"
        )
    if str(given.task) in _LANGUAGE_MODELLING:
        yield from _continuing(given)


def _continuing(given: Given) -> Faults:
    """Language models go on with a prompt."""
    for name in OF_A_SOURCE:
        if getattr(given, name) is not None:
            yield f"--{name.replace('_', '-')} is for translation: a language model has no source"
    if given.from_file and given.sample_break_mode != "eos":
        yield (
            "fairseq-generate goes on with one prompt a line: give --task language_modeling "
            "--sample-break-mode eos, with which the data is read line by line"
        )
    if given.from_file and given.add_bos_token:
        yield (
            "fairseq-generate takes an </s> before the prompt for a part of it with --add-bos-token: give "
            "the prompts to fairseq-interactive"
        )


def evaluation(given: Given) -> Faults:
    """Commands that read a model need its path; blocks and words of fairseq-eval-lm; what divides data."""
    if "path" in given.all and not given.trains and not given.path:
        yield "--path is missing: give the checkpoint, such as checkpoints/checkpoint_best.pt"
    eval_lm = "context_window" in given.all and not given.trains  # hydra's training has it, too
    window, length = given.context_window or 0, given.tokens_per_sample
    if length is not None and window >= length > 0:
        yield f"--context-window {window} must be below --tokens-per-sample {length}, of which it is a part"
    if eval_lm and given.post_process == "sentencepiece":
        yield (
            "fairseq-eval-lm joins no pieces of sentencepiece: leave out --remove-bpe (the perplexity of "
            "words is 2 to the loss times tokens over words)"
        )
    processes = max(given.distributed_world_size or 1, launched())
    shards, shard = given.num_shards or 1, given.shard_id or 0
    if eval_lm and processes > 1:
        yield (
            f"--distributed-world-size {processes}, or torchrun: fairseq-eval-lm would print the score of "
            "the first process's part of the text: start one (--num-shards divides the text)"
        )
    if eval_lm and shards > 1 and given.task == "streaming_lm":
        yield f"--num-shards {shards}: --task streaming_lm reads the whole text in one go, leave it out"
    if not 0 <= shard < shards:
        yield f"--shard-id {shard}: must be at least 0 and below --num-shards {shards}"
    if shards > 1 and "path" in given.all and not (given.from_file or eval_lm or given.trains):
        yield f"--num-shards {shards} divides the data of fairseq-generate and -eval-lm only"


CHECKS: Tuple[Callable[[Given], Faults], ...] = (
    values,
    device,
    precision_of_int8,
    metric,
    masking,
    widths,
    adaptive_softmax,
    alignments,
    written_options,
    training,
    decoding,
    evaluation,
)
