"""Model card of an exported model, written as README.md."""

from pathlib import Path
from typing import Any, Dict, Optional

from luna_fairseq.errors import InputError
from luna_fairseq.files.scores import SCORES, describe_settings, read_scores, select_scores
from luna_fairseq.huggingface.checkpoint import Checkpoint
from luna_fairseq.huggingface.conversion import ModelKind

_CARD = """---
library_name: transformers
tags: [luna]
---

# Luna {title}

Linear Unified Nested Attention (Ma et al., NeurIPS 2021, arXiv 2106.01540),
trained by fairseq with luna_fairseq.

```python
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained(FOLDER, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
```

| | |
|---|---|
{rows}
"""


def build_model_card(checkpoint: Checkpoint, kind: ModelKind, scores: Dict[str, str]) -> str:
    """Return README.md: how to load the model, training details, ``scores`` as text by name, and options."""
    rows = {**_training_details(checkpoint), **scores, **_model_options(checkpoint)}
    lines = ["| {} | {} |".format(name, str(value).replace("|", r"\|")) for name, value in rows.items()]
    return _CARD.format(title=kind.title, auto=kind.auto_class, rows="\n".join(lines))


def _training_details(checkpoint: Checkpoint) -> Dict[str, Any]:
    """Return the training details for the model card.

    Args:
        checkpoint: loaded checkpoint.

    Returns:
        Values keyed by heading, such as "parameters", "updates" and "source language". Unknown values are
        omitted.
    """
    extra = checkpoint.state.get("extra_state") or {}
    history = (checkpoint.state.get("optimizer_history") or [{}])[-1]
    size = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    details = {
        "parameters": f"{size:,}",
        "updates": history.get("num_updates"),
        "epochs": _finished_epochs(extra.get("train_iterator") or {}),
        "validation loss": extra.get("val_loss"),
        "best": extra.get("best"),
        "source language": getattr(checkpoint.task.cfg, "source_lang", None),
        "target language": getattr(checkpoint.task.cfg, "target_lang", None),
    }
    return {name: value for name, value in details.items() if value is not None}


def _finished_epochs(iterator: Dict[str, Any]) -> Optional[int]:
    """Return the number of completed epochs of a training run.

    fairseq stores the number of the current epoch. After the last batch of an epoch, it already refers to the
    next one.

    Args:
        iterator: state of fairseq's epoch iterator, from the checkpoint.

    Returns:
        Number of epochs, or None if the checkpoint does not record it.
    """
    epoch = iterator.get("epoch")
    return None if epoch is None else epoch - 1


def find_scores(path: Path, ema: bool, given: Optional[Path] = None) -> Dict[str, str]:
    """Return the scores of a checkpoint with their settings, as text keyed by the name of the score.

    Args:
        path: checkpoint file, in the run folder or in its subfolder ``checkpoints``.
        ema: the moving average of its weights is exported.
        given: file of luna-evaluate or luna-score (default: the files of the run that name this checkpoint).

    Raises:
        InputError: A file contains no scores, or ``given`` contains those of another checkpoint.
    """
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    places = (path.parent, run, run / "results")
    files = [folder / SCORES for folder in places] if given is None else [given]
    for file in filter(Path.is_file, files):
        scores = read_scores(file)
        found = select_scores(scores, path, ema, accept_unknown=given is not None)
        if given is not None and not found and scores:
            weights = "averaged weights" if scores[0].get("ema") else "weights"
            raise InputError(
                f"--scores {file} has the scores of the {weights} of {scores[0]['checkpoint']}, which differ "
                f"from those of {path}. Evaluate the checkpoint that is exported."
            )
        if found:
            return {score["name"]: _format_score(score) for score in found}
    return {}


def _format_score(score: Dict[str, Any]) -> str:
    settings = describe_settings(score)
    return f"{score['value']:.2f} (`{score['signature']}`{f'; {settings}' if settings else ''})"


def _model_options(checkpoint: Checkpoint) -> Dict[str, Any]:
    """Return the options with which the model was built.

    Args:
        checkpoint: loaded checkpoint.

    Returns:
        Option values, keyed by name. The names are in backticks for Markdown.
    """
    model = checkpoint.state["cfg"]["model"]
    options = dict(model) if hasattr(model, "keys") else vars(model)
    known = type(checkpoint.model).__dataclass.__dataclass_fields__
    return {f"`{name}`": options[name] for name in sorted(options) if name in known}
