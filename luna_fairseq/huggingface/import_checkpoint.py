"""``luna-import-huggingface``: an exported folder, fine-tuned by transformers, as a fairseq checkpoint again.

FOLDER is what luna-export-huggingface wrote, or what save_pretrained wrote of a model that was loaded from
it. The options of the model, its task and its languages are those of the checkpoint that was exported, which
--like names; the parameters are FOLDER's. So fairseq-generate, luna-evaluate and all other commands read the
new checkpoint as they read the old one.
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
from luna_fairseq.commands.averaging import load
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import replacing

logger = logging.getLogger(__name__)

PROGRAM = "luna-import-huggingface"


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("folder", "folder of config.json and model.safetensors", "FOLDER")
    parser.path("--like", "the checkpoint that was exported", "CHECKPOINT", required=True)
    parser.path("--path", "checkpoint to write", "CHECKPOINT", required=True)
    return parser


def import_folder(folder: Path, like: Path, path: Path) -> None:
    """Write the checkpoint ``path``: the parameters of ``folder``, all else of the checkpoint ``like``.

    Raises:
        InputError: a file is missing or there already, or the folder is of another model or vocabulary, or
            transformers is missing
    """
    if path.exists():
        raise InputError(f"--path {path} is there already: give another name, or remove it")
    if not like.is_file():
        raise InputError(f"--like {like} does not exist")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: give a folder that save_pretrained wrote")
    try:
        from luna_fairseq.huggingface.conversion import read_names
    except ImportError as error:
        raise MissingRequirementError(
            'the import needs transformers and safetensors: pip install "luna_fairseq[huggingface]"'
        ) from error
    state = load(like)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _check_run(config.get("trained_as", {}), stored_identity(state), folder, like)
    _check_vocabularies(config.get("vocabularies", {}), folder)
    taken = read_names(state["model"], config)
    weights = _weights(folder)
    if config.get("tie_word_embeddings", True):
        _share(weights, taken.values(), bool(config.get("share_all_embeddings")))
    _check(weights, taken, state["model"], folder)
    tied = _tied_with(taken, state["model"])
    for ours, theirs in {**taken, **tied}.items():
        state["model"][ours] = weights[theirs].to(state["model"][ours].dtype)
    state["last_optimizer_state"] = None
    with replacing(path) as temporary:
        torch.save(state, str(temporary))


# Names of one tensor where embeddings are tied, of which a file has the first, or another.
TIED = ("embed_tokens.weight", "lm_head.weight", "lm_head.decoder.weight")


def _weights(folder: Path) -> Dict[str, Tensor]:
    """The parameters of ``folder`` by the exported model's names, in one file or several."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no model.safetensors: save the model with save_pretrained")
    return {name: value for file in files for name, value in load_file(str(file)).items()}


def _share(weights: Dict[str, Tensor], names: Iterable[str], all_embeddings: bool) -> None:
    """Give those of ``names`` that are the output's embedding it, whatever ``weights`` call it. A source with
    a vocabulary of its own has another."""
    others = () if all_embeddings else ("luna.encoder.",)
    names = [name for name in (*weights, *names) if name.endswith(TIED) and not name.startswith(others)]
    for value in [weights[name] for name in names if name in weights][:1]:
        weights.update({name: value for name in names if name not in weights})


def _tied_with(taken: Mapping[str, str], model: Mapping[str, Tensor]) -> Dict[str, str]:
    """Return the parameters of ``model`` that are tied to an embedding in ``taken`` and not taken themselves,
    with the exported embedding's name.

    A fine-tuned classifier has no LM head, but the weight of the checkpoint's LM head is the embedding.
    fairseq loads the head after the embedding, so an old head would replace the imported embedding.
    """
    embeddings = {ours: theirs for ours, theirs in taken.items() if ours.endswith(TIED)}
    return {
        name: theirs
        for name in model
        if name.endswith(TIED) and name not in taken
        for ours, theirs in embeddings.items()
        if torch.equal(model[name], model[ours])
    }


def _check_run(exported: Dict[str, Any], ours: Dict[str, Any], folder: Path, like: Path) -> None:
    """Raise InputError where weights that fit would be given another direction, dictionary or function."""
    for name, value in exported.items():
        if name in ours and ours[name] != value:
            raise InputError(
                f"{folder} was exported from another training than --like {like} ({name.replace('_', ' ')} "
                f"{value}, not {ours[name]}): give a checkpoint of that one"
            )


def _check_vocabularies(exported: Mapping[str, str], folder: Path) -> None:
    """Raise InputError where ids stand for other tokens than in the tokenizers that were ``exported``."""
    from tokenizers import Tokenizer

    from luna_fairseq.huggingface.tokenizer import vocabulary_of

    for name, vocabulary in exported.items():
        path = folder / name
        if not path.is_file():
            logger.warning(f"{path} is not there: the vocabulary is taken to be the checkpoint's")
            continue
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"{path} is no tokenizer: {error}") from error
        if vocabulary_of(tokenizer) != vocabulary:
            raise InputError(
                f"{path} is not the vocabulary that was exported: the folder was fine-tuned with another "
                "one, in which ids stand for other tokens than in --like's dictionary"
            )


def _check(weights: Dict[str, Tensor], taken: Dict[str, str], model: Any, folder: Path) -> None:
    """Raise InputError where ``weights`` are not those of a ``model`` whose names are ``taken``."""
    for ours, theirs in taken.items():
        if theirs not in weights:
            raise InputError(f"{folder} lacks {theirs}: it is of another model than --like")
        if weights[theirs].shape != model[ours].shape:
            shapes = " x ".join(map(str, weights[theirs].shape)), " x ".join(map(str, model[ours].shape))
            raise InputError(
                f"{folder}: {theirs} is {shapes[0]}, the checkpoint's is {shapes[1]}: the folder was "
                "fine-tuned with another vocabulary, or is of another model"
            )


def _import(args: argparse.Namespace) -> None:
    import_folder(args.folder, args.like, args.path)
    print(args.path)


main = console_script(PROGRAM, build_parser, lambda args: _import(args), place="path", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
