"""Model card of an exported model, written as README.md."""

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from luna_fairseq.errors import InputError
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


def build_model_card(checkpoint: Checkpoint, kind: ModelKind, scores: List[Path]) -> str:
    """Build the model card of an exported checkpoint.

    The card shows how to load the model and contains a table of training details, scores and options.

    Args:
        checkpoint: exported checkpoint.
        kind: kind of model.
        scores: paths of score files. The first existing file is shown.

    Returns:
        Contents of README.md.

    Raises:
        InputError: The score file was not written by luna-evaluate or luna-score.
    """
    rows = {**_training_details(checkpoint), **_read_scores(scores), **_model_options(checkpoint)}
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


def find_score_files(path: Path) -> List[Path]:
    """Return the paths at which luna-evaluate may have written the scores of a checkpoint.

    Args:
        path: checkpoint file, in the run folder or in its subfolder ``checkpoints``.

    Returns:
        Paths of scores.json. The files need not exist.
    """
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return [folder / "scores.json" for folder in (path.parent, run, run / "results")]


def _read_scores(files: List[Path]) -> Dict[str, str]:
    """Read the scores from the first existing file.

    Args:
        files: paths of score files, from :func:`find_score_files`.

    Returns:
        Score and signature as text, keyed by the name of the score. Empty if no file exists.

    Raises:
        InputError: The file contains no scores.
    """
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return {}
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        return {score["name"]: f"{score['value']:.2f} (`{score['signature']}`)" for score in scores}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} contains no scores. Give a scores.json that luna-evaluate wrote."
        ) from error


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
