"""Options that cannot be: each check looks at one kind, once, before any work; to add one, add it to CHECKS.

A check is given what the command line was parsed to: the options of all groups in one Namespace, of which a
command has some only.
"""

import ast
import importlib.util
import json
import re
from argparse import Namespace
from typing import Any, Callable, Iterator, Tuple

import torch

from luna_fairseq.checks.model_options import model_name
from luna_fairseq.errors import InputError

_PROBABILITY = re.compile(r"(dropout|layerdrop|label_smoothing)$")
# Not of every name: --base-layers 0 of fairseq's language models means none of these.
_COUNT = re.compile(
    r"^(en|de)coder_(\w+_)?(embed_dim|attention_heads)$|^(max_tokens|batch_size|update_freq)(_valid)?$|^beam$"
)
_NOT_NEGATIVE = re.compile(r"^clip_norm$|^(en|de)coder_layers$")
# Criterions of which all is known that validation reports.
_PLAIN = {"cross_entropy", "label_smoothed_cross_entropy", "masked_lm", "adaptive_loss"}
_METRICS = {"loss", "nll_loss", "ppl", "wps", "ups", "wpb", "bsz", "num_updates"}


def check_options(args: Namespace) -> None:
    """Make every check.

    Args:
        args: the parsed options. --num-shards of fairseq-generate becomes what fairseq reads, and a
            --replace-unk without a file what it means.

    Raises:
        InputError: an option cannot be meant
    """
    for check in CHECKS:
        check(args)


def check_values(args: Namespace) -> None:
    """Probabilities, numbers of things, what is not negative, names that would be interpolated."""
    for name, value in _single_values(args):
        option = f"--{name.replace('_', '-')} {value:g}" if not isinstance(value, str) else ""
        if isinstance(value, str):
            # A whole one is a default of fairseq's, filled in later.
            if "${" in value and not re.fullmatch(r"\$\{[\w.]+\}", value):
                raise InputError(f"{value}: fairseq replaces what begins with ${{, so no name can hold it")
        elif _PROBABILITY.search(name) and not 0 <= value <= 1:
            raise InputError(f"{option}: a probability is between 0 and 1")
        elif _COUNT.search(name) and value < 1:
            raise InputError(f"{option}: must be at least 1")
        elif _NOT_NEGATIVE.search(name) and not value >= 0:
            raise InputError(f"{option}: must be at least 0")


def _single_values(args: Namespace) -> Iterator[Tuple[str, Any]]:
    for name, given in vars(args).items():
        for value in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(value, (int, float, str)) and not isinstance(value, bool):
                yield str(name), value


def check_device(args: Namespace) -> None:
    """What needs a GPU or a TPU."""
    on_cpu = _of(args, "cpu") or not torch.cuda.is_available()
    if _trains(args) and (_of(args, "fp16") or _of(args, "memory_efficient_fp16")) and on_cpu:
        # Its trainer moves a number to the GPU when gradients overflow, which they do in every training.
        raise InputError("--fp16 needs a GPU: --bf16 works on a CPU, too")
    if (_of(args, "quant_noise_scalar") or 0) > 0 and not torch.cuda.is_available():
        raise InputError(
            "--quant-noise-scalar needs a GPU, on which fairseq quantizes: leave it out, or give "
            "--quant-noise-pq, which works on a CPU, too"
        )
    # fairseq sets it by itself for --bf16 on a CPU, which `processes` takes back.
    if _of(args, "tpu") and not _of(args, "bf16") and importlib.util.find_spec("torch_xla") is None:
        raise InputError("--tpu needs the package torch_xla, which is not here: leave it out")


def check_metric(args: Namespace) -> None:
    """--best-checkpoint-metric that validation will not have."""
    metric = _of(args, "best_checkpoint_metric")
    if not _trains(args) or metric is None or _of(args, "disable_validation"):
        return
    if metric == "bleu" and _of(args, "task") == "translation" and not _of(args, "eval_bleu"):
        raise InputError("--best-checkpoint-metric bleu needs --eval-bleu, without which no BLEU is measured")
    known = _METRICS | ({"accuracy", "n_correct", "total"} if _of(args, "report_accuracy") else set())
    known |= {"bleu"} if _of(args, "eval_bleu") else set()
    known -= {"nll_loss"} if _of(args, "criterion") == "masked_lm" else set()
    if _of(args, "criterion") in _PLAIN and metric not in known:
        raise InputError(
            f"--best-checkpoint-metric {metric}: validation with --criterion {args.criterion} and these "
            f"options has {', '.join(sorted(known & {'loss', 'nll_loss', 'ppl', 'accuracy', 'bleu'}))}"
        )


def check_masking(args: Namespace) -> None:
    """Of fairseq's masked_lm."""
    probability = _of(args, "mask_prob")
    if probability is not None and not 0 < probability < 1:
        raise InputError(f"--mask-prob {probability:g}: must be above 0 and below 1")
    rest = (_of(args, "leave_unmasked_prob") or 0) + (_of(args, "random_token_prob") or 0)
    if not 0 <= rest <= 1:
        raise InputError(f"--leave-unmasked-prob and --random-token-prob are {rest:g} together: at most 1")
    if _of(args, "mask_whole_words") and not hasattr(_bpe(args), "is_beginning_of_word"):
        raise InputError(
            "--mask-whole-words needs pieces that begin words: give --bpe sentencepiece or another "
            "with its files"
        )


def check_widths(args: Namespace) -> None:
    """A shared matrix has one width, and fairseq quantizes at another place than it embeds."""
    shared = _of(args, "share_all_embeddings") or _of(args, "share_decoder_input_output_embed")
    inner = _of(args, "decoder_embed_dim")
    # Only language models embed at another width than the one they compute at.
    given = "embed" if hasattr(args, "encoder_embed_dim") else "input"
    width, output = _of(args, f"decoder_{given}_dim") or inner, _of(args, "decoder_output_dim") or inner
    if shared and width != output:
        raise InputError(
            f"--decoder-output-dim {output} differs from --decoder-{given}-dim {width}: embeddings "
            "that are shared with the output have one width"
        )
    if given == "input" and _of(args, "quant_noise_pq") and width != inner:
        raise InputError(
            f"--quant-noise-pq quantizes tokens at --decoder-embed-dim {inner}: give no other "
            f"--decoder-input-dim ({width})"
        )


def check_adaptive_softmax(args: Namespace) -> None:
    """It and its criterion need each other. (One of another name may be a form of that one; fairseq's older
    models, without a dataclass, have a cutoff always and heed it with that criterion alone.)"""
    from fairseq.models import MODEL_DATACLASS_REGISTRY  # the table is read where there is no fairseq, too

    cutoff, criterion = _of(args, "adaptive_softmax_cutoff"), _of(args, "criterion")
    heeded = cutoff and model_name(vars(args)) in MODEL_DATACLASS_REGISTRY
    if _trains(args) and heeded and criterion in ("cross_entropy", "label_smoothed_cross_entropy"):
        raise InputError(f"--adaptive-softmax-cutoff needs --criterion adaptive_loss, not {criterion}")
    if criterion == "adaptive_loss" and not cutoff:
        raise InputError(
            "--criterion adaptive_loss needs a model with adaptive softmax: give --adaptive-softmax-cutoff, "
            "which models with a decoder have, or another criterion"
        )


def check_written_options(args: Namespace) -> None:
    """Options that are JSON or Python."""
    for name, read, kind in (
        ("eval_bleu_args", json.loads, "JSON"),
        ("model_overrides", ast.literal_eval, "a Python dictionary"),
    ):
        text = _of(args, name)
        try:
            good = text is None or isinstance(read(text), dict)
        except (ValueError, SyntaxError):
            good = False
        if not good:
            raise InputError(f'--{name.replace("_", "-")} {text} is not {kind}, such as {{"beam": 4}}')


def check_checkpoint(args: Namespace) -> None:
    """A command that reads a model needs its path."""
    if hasattr(args, "path") and not _trains(args) and not args.path:
        raise InputError("--path is missing: give the checkpoint, such as checkpoints/checkpoint_best.pt")


def check_decoding(args: Namespace) -> None:
    """Of fairseq-generate and fairseq-interactive."""
    if not _generates(args):
        return
    task, iterative = str(_of(args, "task")), "--retain-iter-history and --print-step"
    if (_of(args, "retain_iter_history") or _of(args, "print_step")) and not task.endswith("_lev"):
        raise InputError(f"{iterative} are for models that refine a whole sentence (--task translation_lev)")
    if _of(args, "sampling") and args.nbest != args.beam:
        raise InputError(f"--sampling needs --nbest {args.beam}, as many as --beam: each is a sample")
    if not args.temperature > 0:
        raise InputError(f"--temperature {args.temperature:g}: must be above 0")
    if not _of(args, "max_len_a") and args.min_len > args.max_len_b:
        raise InputError(
            f"--min-len {args.min_len} is above --max-len-b {args.max_len_b}, the longest output"
        )
    if _of(args, "constraints") and not _interactive(args):
        raise InputError(
            "fairseq-generate reads no constraints: give them to fairseq-interactive, behind a tab after "
            "each sentence"
        )
    if args.replace_unk == "@@ ":  # what fairseq makes of the option alone: then words are copied
        args.replace_unk = ""


def check_prompts(args: Namespace) -> None:
    """A causal language model that goes on with prompts."""
    if _generates(args) and _of(args, "task") == "language_modeling" and not _interactive(args):
        if _of(args, "sample_break_mode") != "eos":
            raise InputError(
                "fairseq-generate goes on with one prompt a line: give --sample-break-mode eos, with which "
                "the data is read line by line"
            )


def check_context_window(args: Namespace) -> None:
    """Of fairseq-eval-lm: every block begins with so many tokens of context."""
    window, length = _of(args, "context_window") or 0, _of(args, "tokens_per_sample")
    if length is not None and window >= length > 0:
        raise InputError(
            f"--context-window {window} must be below --tokens-per-sample {length}, of which it is a part"
        )


def check_word_scores(args: Namespace) -> None:
    """fairseq-eval-lm joins the pieces of words by their mark."""
    if hasattr(args, "context_window") and _of(args, "post_process") == "sentencepiece":
        raise InputError(
            "fairseq-eval-lm joins no pieces of sentencepiece: leave out --remove-bpe (the perplexity of "
            "words is 2 to the loss times tokens over words)"
        )


def check_shards(args: Namespace) -> None:
    """fairseq-generate divides its sentences among processes that are not there, and ignores its shards."""
    shards, shard = _of(args, "num_shards") or 1, _of(args, "shard_id") or 0
    if not 0 <= shard < shards:
        raise InputError(f"--shard-id {shard}: must be at least 0 and below --num-shards {shards}")
    if shards > 1 and _generates(args) and not _interactive(args):
        args.distributed_world_size, args.distributed_rank = shards, shard
    elif shards > 1 and hasattr(args, "path") and not hasattr(args, "context_window") and not _trains(args):
        raise InputError(f"--num-shards {shards} divides the data of fairseq-generate and -eval-lm only")


CHECKS: Tuple[Callable[[Namespace], None], ...] = (
    check_values,
    check_device,
    check_metric,
    check_masking,
    check_widths,
    check_adaptive_softmax,
    check_written_options,
    check_checkpoint,
    check_decoding,
    check_prompts,
    check_context_window,
    check_word_scores,
    check_shards,
)


def _of(args: Namespace, name: str) -> Any:
    return getattr(args, name, None)


def _bpe(args: Namespace) -> Any:
    """The class of --bpe, or None."""
    from fairseq.data.encoders import BPE_REGISTRY  # the table is read where there is no fairseq, too

    return BPE_REGISTRY.get(_of(args, "bpe"))


def _trains(args: Namespace) -> bool:
    return hasattr(args, "max_update")


def _generates(args: Namespace) -> bool:
    """Or translates; not when a command is parsed a second time for what was given alone."""
    return all(_of(args, name) is not None for name in ("beam", "nbest", "temperature", "min_len"))


def _interactive(args: Namespace) -> bool:
    return hasattr(args, "buffer_size")
