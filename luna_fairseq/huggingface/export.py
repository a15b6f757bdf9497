"""Command ``luna-export-huggingface``: export a trained model to a folder that transformers loads.

FOLDER then holds config.json, model.safetensors, the tokenizer, the code of the model, and README.md, which
shows how to load the folder. Loading needs neither fairseq nor this package, but trust_remote_code=True.
Translation models, causal and masked language models, and classifiers can be exported.

Before FOLDER appears, the exported model is loaded again and its output is compared with the output of the
checkpoint. The command needs the extra packages that pip install "luna_fairseq[huggingface]" installs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from luna_fairseq.checks.same_training import KINDS, has_known_task, stored_identity
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import check_replaceable, replacing_folder
from luna_fairseq.huggingface.shipped_code import write_code

PROGRAM = "luna-export-huggingface"
EXAMPLE = "luna-export-huggingface exported --path checkpoints/checkpoint_best.pt --data data-bin"


class ConvertedCheckpoint(NamedTuple):
    """Loaded checkpoint with its :class:`ModelKind`, and the converted transformers model and tokenizer.

    The tokenizer of an image model is None.
    """

    checkpoint: Any
    kind: Any
    model: Any
    tokenizer: Any


def _export(args: argparse.Namespace) -> None:
    """Run the command: export the checkpoint, and print instructions for loading the exported model."""
    kind = export(args.path, args.data, args.folder, args.head, args.scores, args.ema)
    print(f"{args.folder}: {kind.auto_class}.from_pretrained({str(args.folder)!r}, trust_remote_code=True)")


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-export-huggingface."""
    parser = export_parser(PROGRAM, __doc__, EXAMPLE)
    shown = (
        "scores.json that luna-evaluate wrote, to be shown in README.md (default: the file in the folder of "
        "the checkpoint's run, if it has the scores of this checkpoint)"
    )
    parser.path("--scores", shown)
    return parser


def export_parser(program: str, doc: Optional[str], example: str) -> CommandParser:
    """Build a parser with the options shared by luna-export-huggingface and luna-export-onnx."""
    parser = CommandParser(program, doc, example)
    parser.path("folder", "folder to write, which must not exist yet", "FOLDER")
    parser.path("--path", "checkpoint of a Luna model", "CHECKPOINT", required=True)
    parser.path("--data", "folder of the model's dictionaries and tokenizer", "DIR", required=True)
    parser.add_argument(
        "--head",
        metavar="NAME",
        help="classification head of a masked language model to export; 'none' exports the language model "
        "(default: the only head, or the language model if there is no head)",
    )
    parser.ema()
    return parser


def export(
    path: Path,
    data: Path,
    folder: Path,
    head: Optional[str] = None,
    scores: Optional[Path] = None,
    ema: bool = False,
) -> Any:
    """Export a checkpoint to a folder that transformers can load. Return the :class:`ModelKind` of the model.

    Raises InputError if the checkpoint cannot be exported, or the folder exists already.

    Args:
        path: checkpoint file.
        data: folder that contains the dictionaries and the tokenizer. For a fine-tuned model, this is the
            folder that contains input0/dict.txt.
        folder: folder to write, which must not exist yet.
        head: classification head of a masked language model, or "none" for the language model. If None, the
            only head is exported, or the language model if there is no head.
        scores: scores.json to show in README.md. If None, the file in the checkpoint's run folder is used, if
            it has scores of this checkpoint.
        ema: export the moving average of the weights stored by ``fairseq-train --store-ema``.
    """
    if scores is not None and not scores.is_file():
        raise InputError(f"--scores {scores} does not exist. Give a scores.json that luna-evaluate wrote.")
    checkpoint, kind, model, tokenizer = convert_checkpoint(path, data, folder, head, ema)
    from luna_fairseq.huggingface.comparison import check_logits
    from luna_fairseq.huggingface.model_card import build_model_card, find_scores

    card = build_model_card(checkpoint, kind, find_scores(path, ema, scores), tokenizer is not None)

    with replacing_folder(folder) as temporary:
        write_model(model, temporary)
        if tokenizer is not None:
            write_tokenizer(tokenizer, temporary)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        check_logits(checkpoint.model, type(model).from_pretrained(str(temporary)).eval(), kind)
    return kind


def convert_checkpoint(
    path: Path, data: Path, folder: Path, head: Optional[str], ema: bool
) -> ConvertedCheckpoint:
    """Load a fairseq checkpoint, and convert its model and tokenizer to transformers.

    :func:`export` describes the arguments. Raises InputError if the output folder ``folder`` already exists,
    or cannot be written, or if the checkpoint cannot be exported.
    """
    if folder.exists():
        raise InputError(f"{folder} exists already. Give another folder, or remove this one.")
    check_replaceable(folder)
    if not path.is_file():
        raise InputError(f"--path {path} does not exist. Give the checkpoint to export.")
    try:
        from transformers.utils import logging

        from luna_fairseq.huggingface import conversion
        from luna_fairseq.huggingface.tokenizer import tokenizer_for_task, vocabulary_digests
    except ImportError as error:
        raise MissingRequirementError(
            'The export needs transformers and safetensors. Run pip install "luna_fairseq[huggingface]"'
        ) from error
    from luna_fairseq.huggingface.checkpoint import load
    from luna_fairseq.models.ema import ema_copies
    from luna_fairseq.models.tokenizers import first_token

    logging.disable_progress_bar()
    with ema_copies([path] if ema else []) as copies:
        checkpoint = load(copies[0] if ema else path, data)
    kind = conversion.find_kind(checkpoint.model, _choose_head(checkpoint.model, head))
    identity = stored_identity(checkpoint.state)
    _check_task(path, identity)
    model = conversion.convert(checkpoint.model, kind, _generation_dictionary(checkpoint.task))
    _describe_classes(model.config, checkpoint.task)
    if kind is conversion.CAUSAL_LM:
        first = first_token(checkpoint.task)
        model.config.bos_token_id = model.generation_config.bos_token_id = first
    model.config.trained_as = identity
    tokenizer = tokenizer_for_task(checkpoint.task, [path.parent, data], model.config)
    model.config.vocabularies = vocabulary_digests(tokenizer)
    if tokenizer is not None:
        # Pipelines of transformers 4 load a tokenizer only if the configuration names its class.
        model.config.tokenizer_class = type(tokenizer).__name__
    return ConvertedCheckpoint(checkpoint, kind, model, tokenizer)


def _check_task(path: Path, identity: Dict[str, Any]) -> None:
    """Raise InputError if the exported tokenizer cannot build the input of the task named in ``identity``."""
    if not has_known_task(identity):
        raise InputError(
            f"{path} was trained on --task {identity.get('task')}, whose input the exported tokenizer cannot "
            f"build. Only models of these tasks can be exported: {', '.join(KINDS)}."
        )


def _describe_classes(config: Any, task: Any) -> None:
    """Store a classifier's label names, or the problem type "regression", in its configuration.

    ``config`` is unchanged if the exported classification head was not trained on ``task``.
    """
    head, options = getattr(config, "classifier_head", None), getattr(task, "cfg", None)
    if head != getattr(options, "classification_head_name", None):
        return  # The head was trained on another task, or there is none.
    if getattr(options, "regression_target", False):
        config.problem_type = "regression"
        return
    labels = getattr(task, "label_dictionary", None)
    if labels is not None and len(labels) >= labels.nspecial + config.num_labels:
        config.problem_type = "single_label_classification"
        config.id2label = {i: labels[labels.nspecial + i] for i in range(config.num_labels)}
        config.label2id = {name: i for i, name in config.id2label.items()}


def _generation_dictionary(task: Any) -> Any:
    """Return the target dictionary of a translation task, or the source dictionary of any other task."""
    return task.target_dictionary if getattr(task.cfg, "target_lang", None) else task.source_dictionary


def _choose_head(model: Any, head: Optional[str]) -> Optional[str]:
    """Return the name of the classification head to export, or None to export the language model.

    ``head`` is the user's choice, with "none" for the language model. If ``head`` is None, the only head is
    exported, or the language model if there is no head. Raises InputError for None and several heads.
    """
    if head is not None:
        return None if head == "none" else head
    heads = list(getattr(model, "classification_heads", ()))
    if len(heads) > 1:
        raise InputError(f"The model has several heads. Choose one with --head: {', '.join(heads)} or none.")
    return heads[0] if heads else None


def write_model(model: Any, folder: Path) -> None:
    """Write a model to a folder, together with the code that defines its class."""
    model.save_pretrained(str(folder))
    write_code(type(model).__module__, folder)


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer to an existing folder, together with the code that defines its class."""
    tokenizer.save_pretrained(str(folder))
    name, module = type(tokenizer).__name__, type(tokenizer).__module__
    write_code(module, folder)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = name
    content["auto_map"] = {"AutoTokenizer": [None, f"{module.rpartition('.')[2]}.{name}"]}
    content.pop("backend", None)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


main = console_script(PROGRAM, build_parser, _export, path_argument="folder", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
