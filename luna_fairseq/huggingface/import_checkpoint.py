"""Command ``luna-import-huggingface``: convert an exported model back into a fairseq checkpoint.

Use this command after fine-tuning an exported model with transformers. FOLDER is a folder that
luna-export-huggingface wrote, or that save_pretrained wrote for a model loaded from such a folder.

The new checkpoint has the parameters of FOLDER. Everything else (options, task, languages) comes from the
checkpoint that was exported, which you name with --like. fairseq-generate, luna-evaluate and all other
commands accept the new checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping

import torch
from torch import Tensor

from luna_fairseq.checks.same_training import stored_identity
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.averaging import load_checkpoint
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.checkpoints import save_checkpoint

logger = logging.getLogger(__name__)

PROGRAM = "luna-import-huggingface"
EXAMPLE = "luna-import-huggingface fine-tuned --like checkpoints/checkpoint_best.pt --path back.pt"


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-import-huggingface."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    parser.path("folder", "folder that contains config.json and model.safetensors", "FOLDER")
    parser.path("--like", "checkpoint that was exported", "CHECKPOINT", required=True)
    parser.path("--path", "checkpoint to write", "CHECKPOINT", required=True)
    return parser


def import_folder(folder: Path, like: Path, path: Path) -> None:
    """Write a fairseq checkpoint with the parameters from an exported folder.

    Args:
        folder: folder written by ``save_pretrained`` or luna-export-huggingface.
        like: checkpoint from which the folder was exported. Its contents are copied, except for the
            optimizer state.
        path: checkpoint to write, which must not exist yet.
    """
    if path.exists():
        raise InputError(f"--path {path} exists already. Give another name, or remove this file.")
    if not like.is_file():
        raise InputError(f"--like {like} does not exist. Give the checkpoint that was exported.")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json. Give a folder that save_pretrained wrote.")
    try:
        from luna_fairseq.huggingface.conversion import map_names
    except ImportError as error:
        raise MissingRequirementError(
            'The import needs transformers and safetensors. Run pip install "luna_fairseq[huggingface]"'
        ) from error
    state = load_checkpoint(like)
    model = state["model"]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _check_same_training(config.get("trained_as", {}), stored_identity(state), folder, like)
    _check_vocabularies(config.get("vocabularies", {}), folder)
    names = map_names(model, config)
    weights = _load_weights(folder)
    if config.get("tie_word_embeddings", True):
        _restore_tied_weights(weights, names.values(), bool(config.get("share_all_embeddings")))
    _check_weights(weights, names, model, folder)
    for ours, theirs in {**names, **_find_tied_parameters(names, model)}.items():
        model[ours] = weights[theirs].to(model[ours].dtype)
    state["last_optimizer_state"] = None
    (state.get("extra_state") or {}).pop("val_loss", None)  # that of the exported weights
    save_checkpoint(state, path)


# Suffixes of the names of tied parameters. safetensors stores a tied parameter under only one of its names.
TIED = ("embed_tokens.weight", "lm_head.weight", "lm_head.decoder.weight")


def _load_weights(folder: Path) -> Dict[str, Tensor]:
    """Load the parameters of an exported model from all safetensors files of a folder."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no model.safetensors. Save the model with save_pretrained.")
    return {name: value for file in files for name, value in load_file(str(file)).items()}


def _restore_tied_weights(weights: Dict[str, Tensor], names: Iterable[str], all_shared: bool) -> None:
    """Complete ``weights`` in place with the tied parameters that safetensors omitted.

    ``names`` lists the exported model's parameters. With ``all_shared``, the encoder's embedding is tied too.
    """
    untied = () if all_shared else ("luna.encoder.",)
    tied = [name for name in (*weights, *names) if name.endswith(TIED) and not name.startswith(untied)]
    stored = next((weights[name] for name in tied if name in weights), None)
    if stored is not None:
        weights.update({name: stored for name in tied if name not in weights})


def _find_tied_parameters(names: Mapping[str, str], model: Mapping[str, Tensor]) -> Dict[str, str]:
    """Map each unexported parameter that is tied to an embedding to the embedding's name after the export.

    ``names`` maps names in the checkpoint ``model`` to names in the exported model. For example, a classifier
    is exported without its LM head, whose old weight would overwrite the imported embedding.
    """
    embeddings = {ours: theirs for ours, theirs in names.items() if ours.endswith(TIED)}
    return {
        name: theirs
        for name in model
        if name.endswith(TIED) and name not in names
        for ours, theirs in embeddings.items()
        if torch.equal(model[name], model[ours])
    }


def _check_same_training(
    exported: Dict[str, Any], original: Dict[str, Any], folder: Path, like: Path
) -> None:
    """Raise InputError if a folder was not exported from the training run of the checkpoint ``like``.

    ``exported`` and ``original`` are the identities of the two runs, returned by :func:`stored_identity`.
    """
    for name, value in exported.items():
        if name in original and original[name] != value:
            raise InputError(
                f"{folder} was exported from another training than --like {like}: its "
                f"{name.replace('_', ' ')} is {value}, not {original[name]}. Give the exported checkpoint."
            )


def _check_vocabularies(exported: Mapping[str, str], folder: Path) -> None:
    """Raise InputError if a folder contains a tokenizer whose vocabulary has changed since the export.

    ``exported`` maps the file name of each vocabulary to its digest. A missing file causes a warning.
    """
    from tokenizers import Tokenizer

    from luna_fairseq.huggingface.tokenizer import vocabulary_digest

    for name, digest in exported.items():
        path = folder / name
        if not path.is_file():
            logger.warning(f"{path} does not exist, so the vocabulary of the model is not checked")
            continue
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # The library does not raise a more specific class.
            raise InputError(f"{path} is not a tokenizer: {error}") from error
        if vocabulary_digest(tokenizer) != digest:
            raise InputError(
                f"{path} has another vocabulary than the exported tokenizer. Fine-tune the model with the "
                "exported tokenizer."
            )


def _check_weights(weights: Dict[str, Tensor], names: Dict[str, str], model: Any, folder: Path) -> None:
    """Raise InputError unless a folder has every exported parameter of a checkpoint, in the same shape.

    ``weights`` holds the parameters in the folder, and ``model`` the parameters in the checkpoint. ``names``
    maps names in the checkpoint to names in the folder.
    """
    for ours, theirs in names.items():
        if theirs not in weights:
            raise InputError(
                f"{folder} has no parameter {theirs}. Give the checkpoint that was exported as --like."
            )
        if weights[theirs].shape != model[ours].shape:
            expected, actual = (" x ".join(map(str, x.shape)) for x in (model[ours], weights[theirs]))
            raise InputError(
                f"{folder}: expected {theirs} of the shape {expected}, got {actual}. The folder "
                "was fine-tuned with another vocabulary, or contains another model."
            )


def _import(args: argparse.Namespace) -> None:
    """Run the command: write the checkpoint, and print its path."""
    import_folder(args.folder, args.like, args.path)
    print(args.path)


main = console_script(PROGRAM, build_parser, _import, path_argument="path", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
