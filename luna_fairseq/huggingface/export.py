"""``luna-export-huggingface``: a trained model as a folder that Hugging Face's transformers loads.

FOLDER then holds config.json, model.safetensors, the tokenizer, README.md, and the model's code, so that the
class that README.md names and AutoTokenizer load it with trust_remote_code=True, without fairseq and without
this package. Any model of this package can be exported: translation, causal and masked language models,
classifiers. What was written is loaded again and compared with fairseq's output before the folder appears.
Needs the extra "huggingface": pip install "luna_fairseq[huggingface]".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Optional, Tuple

from luna_fairseq.checks.same_training import stored_identity
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import replacing_folder
from luna_fairseq.huggingface.shipped_code import write_code

PROGRAM = "luna-export-huggingface"


def _export(args: argparse.Namespace) -> None:
    kind = export(args.path, args.data, args.folder, args.head, args.scores, args.ema)
    print(f"{args.folder}: {kind.auto}.from_pretrained({str(args.folder)!r}, trust_remote_code=True)")


def build_parser() -> CommandParser:
    """The command's options."""
    parser = export_parser(PROGRAM, __doc__)
    beside = "scores.json of luna-evaluate, for README.md (default: that of the checkpoint's run, if any)"
    parser.path("--scores", beside)
    return parser


def export_parser(program: str, doc: Optional[str]) -> CommandParser:
    """Return a parser with the options that all exports share."""
    parser = CommandParser(program, doc)
    parser.path("folder", "folder to write, which must not exist yet", "FOLDER")
    parser.path("--path", "checkpoint of a Luna model", "CHECKPOINT", required=True)
    parser.path("--data", "folder of its dictionaries and tokenizer", "DIR", required=True)
    parser.add_argument(
        "--head",
        metavar="NAME",
        help="of a masked language model: export this classification head (default: the one that it has; "
        "none: the language model)",
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
    """Write ``folder``.

    Args:
        path: the checkpoint.
        data: folder of the dictionaries (of input0/dict.txt for a fine-tuned model) and of the tokenizer.
        folder: must not exist.
        head: a classification head; by default the one that the model has, "none" for the language model.
        scores: what luna-evaluate wrote (default: of the checkpoint's run, if it is there).
        ema: export the weights that ``fairseq-train --store-ema`` averaged (default: False).

    Returns:
        the :class:`luna_fairseq.huggingface.conversion.Kind` of the model.

    Raises:
        InputError: the checkpoint, the tokenizer or the folder is not what it should be, or transformers is
            missing.
    """
    if scores is not None and not scores.is_file():
        raise InputError(f"--scores {scores} does not exist")
    checkpoint, kind, model, tokenizer = converted(path, data, folder, head, ema)
    from luna_fairseq.huggingface.comparison import compare
    from luna_fairseq.huggingface.model_card import model_card, scores_beside

    card = model_card(checkpoint, kind, scores_beside(path) if scores is None else [scores])

    with replacing_folder(folder) as temporary:
        write_model(model, temporary)
        if tokenizer is not None:
            write_tokenizer(tokenizer, temporary)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        compare(checkpoint.model, type(model).from_pretrained(str(temporary)).eval(), kind)
    return kind


def converted(path: Path, data: Path, folder: Path, head: Optional[str], ema: bool) -> Tuple[Any, ...]:
    """The checkpoint ``path``, its kind, transformers' model and its tokenizer, None for pixels; arguments
    and errors as of :func:`export`."""
    if folder.exists():
        raise InputError(f"{folder} is there already: give another folder, or remove it")
    if not path.is_file():
        raise InputError(f"--path {path} does not exist")
    try:
        from transformers.utils import logging

        from luna_fairseq.huggingface import conversion
        from luna_fairseq.huggingface.tokenizer import tokenizer_of, vocabularies
    except ImportError as error:
        raise MissingRequirementError(
            'the export needs transformers and safetensors: pip install "luna_fairseq[huggingface]"'
        ) from error
    from luna_fairseq.huggingface.checkpoint import load
    from luna_fairseq.models.ema import ema_checkpoint

    logging.disable_progress_bar()
    with ema_checkpoint(path, ema) as file:
        checkpoint = load(file, data)
    kind = conversion.kind_of(checkpoint.model, _choose_head(checkpoint.model, head))
    model = conversion.convert(checkpoint.model, kind, _dictionary(checkpoint.task))
    model.config.trained_as = stored_identity(checkpoint.state)
    tokenizer = tokenizer_of(checkpoint.task, [path.parent, data], model.config)
    model.config.vocabularies = vocabularies(tokenizer)
    return checkpoint, kind, model, tokenizer


def _dictionary(task: Any) -> Any:
    """Of what the model writes, or of what it reads where these are classes."""
    return task.target_dictionary if getattr(task.cfg, "target_lang", None) else task.source_dictionary


def _choose_head(model: Any, head: Optional[str]) -> Optional[str]:
    heads = list(getattr(model, "classification_heads", ()))
    if head is None and len(heads) > 1:
        raise InputError(f"give one of the model's heads with --head: {', '.join(heads)}, none")
    return (heads or [None])[0] if head is None else None if head == "none" else head


def write_model(model: Any, folder: Path) -> None:
    """Write the converted ``model``, and its code beside it."""
    model.save_pretrained(str(folder))
    write_code(type(model).__module__, folder)


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write ``tokenizer``, and its code beside it."""
    tokenizer.save_pretrained(str(folder))
    name, module = type(tokenizer).__name__, type(tokenizer).__module__
    write_code(module, folder)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = name
    content["auto_map"] = {"AutoTokenizer": [None, f"{module.rpartition('.')[2]}.{name}"]}
    content.pop("backend", None)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


main = console_script(PROGRAM, build_parser, lambda args: _export(args), place="folder", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
