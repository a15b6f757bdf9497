"""Model card, the README.md of an exported folder."""

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from luna_fairseq.errors import InputError
from luna_fairseq.huggingface.checkpoint import Checkpoint
from luna_fairseq.huggingface.conversion import Kind

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


def model_card(checkpoint: Checkpoint, kind: Kind, scores: List[Path]) -> str:
    """Write the model card of a checkpoint.

    The card shows how to load the model, its training, its options and its score.

    Args:
        checkpoint: checkpoint that is exported.
        kind: kind of the model.
        scores: files of scores. The first that exists is shown.

    Returns:
        Text of README.md.

    Raises:
        InputError: The file of scores was not written by luna-evaluate or luna-score.
    """
    rows = {**_training_details(checkpoint), **_scores(scores), **_options(checkpoint)}
    lines = ["| {} | {} |".format(name, str(value).replace("|", r"\|")) for name, value in rows.items()]
    return _CARD.format(title=kind.title, auto=kind.auto, rows="\n".join(lines))


def _training_details(checkpoint: Checkpoint) -> Dict[str, Any]:
    """Return the number of parameters and what is known about the training.

    Args:
        checkpoint: loaded checkpoint.

    Returns:
        Values by their name in the model card.
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
    """Return the number of epochs that a training has finished.

    fairseq stores the epoch in progress. After the last batch of an epoch it stores the next epoch.

    Args:
        iterator: state of fairseq's iterator over epochs, from the checkpoint.

    Returns:
        Number of epochs, or None if it is unknown.
    """
    epoch = iterator.get("epoch")
    return None if epoch is None else epoch - 1


def score_files(path: Path) -> List[Path]:
    """Return the files in which luna-evaluate may have written the scores of a checkpoint.

    Args:
        path: file of the checkpoint, in the folder of the run or in its subfolder ``checkpoints``.

    Returns:
        Paths of files that need not exist.
    """
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return [folder / "scores.json" for folder in (path.parent, run, run / "results")]


def _scores(files: List[Path]) -> Dict[str, str]:
    """Read the scores from the first file that exists.

    Args:
        files: files that luna-evaluate may have written.

    Returns:
        Formatted scores by name. Empty if no file exists.

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
        raise InputError(f"{path} contains no scores. Give a scores.json that luna-evaluate wrote") from error


def _options(checkpoint: Checkpoint) -> Dict[str, Any]:
    """Return the options that the model was built with.

    Args:
        checkpoint: loaded checkpoint.

    Returns:
        Values by the name of the option, in backticks.
    """
    model = checkpoint.state["cfg"]["model"]
    options = dict(model) if hasattr(model, "keys") else vars(model)
    known = type(checkpoint.model).__dataclass.__dataclass_fields__
    return {f"`{name}`": options[name] for name in sorted(options) if name in known}
