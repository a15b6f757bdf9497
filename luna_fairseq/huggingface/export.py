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
from typing import Any, NamedTuple, Optional

from luna_fairseq.checks.same_training import stored_identity
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import replacing_folder
from luna_fairseq.huggingface.shipped_code import write_code

PROGRAM = "luna-export-huggingface"
EXAMPLE = "luna-export-huggingface exported --path checkpoints/checkpoint_best.pt --data data-bin"


class ConvertedCheckpoint(NamedTuple):
    """Checkpoint with its model and tokenizer converted for transformers.

    Attributes:
        checkpoint: loaded checkpoint, a :class:`luna_fairseq.huggingface.checkpoint.Checkpoint`.
        kind: kind of the model, a :class:`luna_fairseq.huggingface.conversion.Kind`.
        model: exported model with the weights of the checkpoint.
        tokenizer: tokenizer of the model; None if the model reads images.
    """

    checkpoint: Any
    kind: Any
    model: Any
    tokenizer: Any


def _export(args: argparse.Namespace) -> None:
    """Run the command."""
    kind = export(args.path, args.data, args.folder, args.head, args.scores, args.ema)
    print(f"{args.folder}: {kind.auto}.from_pretrained({str(args.folder)!r}, trust_remote_code=True)")


def build_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = export_parser(PROGRAM, __doc__, EXAMPLE)
    shown = (
        "scores.json that luna-evaluate wrote, to be shown in README.md (default: the file in the folder of "
        "the checkpoint's run, if there is one)"
    )
    parser.path("--scores", shown)
    return parser


def export_parser(program: str, doc: Optional[str], example: str) -> CommandParser:
    """Build a parser with the options that all export commands have in common.

    Args:
        program: name of the command.
        doc: docstring of the command's module.
        example: command line that ``--help`` ends with.

    Returns:
        The parser.
    """
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
    """Export a checkpoint to a folder that transformers loads.

    Args:
        path: file of the checkpoint.
        data: folder of the dictionaries and the tokenizer. For a fine-tuned model this is the folder that
            contains input0/dict.txt.
        folder: folder to write, which must not exist yet.
        head: name of the classification head of a masked language model; "none" exports the language model
            (default: None, the only head, or the language model if there is no head).
        scores: scores.json that luna-evaluate wrote, to be shown in README.md (default: None, the file in the
            folder of the checkpoint's run, if there is one).
        ema: export the moving average of the weights that ``fairseq-train --store-ema`` stores (default:
            False).

    Returns:
        The :class:`luna_fairseq.huggingface.conversion.Kind` of the model.

    Raises:
        InputError: An argument is wrong, the model cannot be exported, or the exported model computes other
            numbers than the checkpoint.
        MissingRequirementError: Transformers is not installed.

    Example:
        >>> from pathlib import Path
        >>> export(Path("checkpoint_best.pt"), Path("data-bin"), Path("exported"))  # doctest: +SKIP
    """
    if scores is not None and not scores.is_file():
        raise InputError(f"--scores {scores} does not exist")
    checkpoint, kind, model, tokenizer = convert_checkpoint(path, data, folder, head, ema)
    from luna_fairseq.huggingface.comparison import compare
    from luna_fairseq.huggingface.model_card import model_card, score_files

    card = model_card(checkpoint, kind, score_files(path) if scores is None else [scores])

    with replacing_folder(folder) as temporary:
        write_model(model, temporary)
        if tokenizer is not None:
            write_tokenizer(tokenizer, temporary)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        compare(checkpoint.model, type(model).from_pretrained(str(temporary)).eval(), kind)
    return kind


def convert_checkpoint(
    path: Path, data: Path, folder: Path, head: Optional[str], ema: bool
) -> ConvertedCheckpoint:
    """Load a checkpoint and convert its model and its tokenizer.

    Args:
        path: see :func:`export`.
        data: see :func:`export`.
        folder: folder that will be written. It is only checked here.
        head: see :func:`export`.
        ema: see :func:`export`.

    Returns:
        The checkpoint with the converted model and tokenizer.

    Raises:
        InputError: An argument is wrong, or the model cannot be exported.
        MissingRequirementError: Transformers is not installed.
    """
    if folder.exists():
        raise InputError(f"{folder} exists already. Give another folder, or remove this one")
    if not path.is_file():
        raise InputError(f"--path {path} does not exist")
    try:
        from transformers.utils import logging

        from luna_fairseq.huggingface import conversion
        from luna_fairseq.huggingface.tokenizer import tokenizer_for_task, vocabulary_digests
    except ImportError as error:
        raise MissingRequirementError(
            'The export needs transformers and safetensors. Run pip install "luna_fairseq[huggingface]"'
        ) from error
    from luna_fairseq.huggingface.checkpoint import load
    from luna_fairseq.models.ema import ema_checkpoint

    logging.disable_progress_bar()
    with ema_checkpoint(path, ema) as file:
        checkpoint = load(file, data)
    kind = conversion.find_kind(checkpoint.model, _choose_head(checkpoint.model, head))
    model = conversion.convert(checkpoint.model, kind, _dictionary(checkpoint.task))
    model.config.trained_as = stored_identity(checkpoint.state)
    tokenizer = tokenizer_for_task(checkpoint.task, [path.parent, data], model.config)
    model.config.vocabularies = vocabulary_digests(tokenizer)
    return ConvertedCheckpoint(checkpoint, kind, model, tokenizer)


def _dictionary(task: Any) -> Any:
    """Return the target dictionary of a translation task, and the source dictionary of any other task."""
    return task.target_dictionary if getattr(task.cfg, "target_lang", None) else task.source_dictionary


def _choose_head(model: Any, head: Optional[str]) -> Optional[str]:
    """Return the name of the classification head to export, or None for the model without such a head.

    Args:
        model: fairseq model.
        head: name that the user gave, "none", or None if the user gave no name.

    Raises:
        InputError: The model has several heads and the user gave no name.
    """
    if head is not None:
        return None if head == "none" else head
    heads = list(getattr(model, "classification_heads", ()))
    if len(heads) > 1:
        raise InputError(f"The model has several heads. Choose one with --head: {', '.join(heads)} or none")
    return heads[0] if heads else None


def write_model(model: Any, folder: Path) -> None:
    """Write a model and its code to a folder.

    Args:
        model: exported model.
        folder: folder to write to.
    """
    model.save_pretrained(str(folder))
    write_code(type(model).__module__, folder)


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer and its code to a folder.

    Args:
        tokenizer: tokenizer of an exported model.
        folder: existing folder to write to.
    """
    tokenizer.save_pretrained(str(folder))
    name, module = type(tokenizer).__name__, type(tokenizer).__module__
    write_code(module, folder)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = name
    content["auto_map"] = {"AutoTokenizer": [None, f"{module.rpartition('.')[2]}.{name}"]}
    content.pop("backend", None)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


main = console_script(
    PROGRAM, build_parser, lambda args: _export(args), path_argument="folder", hides_log=True
)


if __name__ == "__main__":
    sys.exit(main())
