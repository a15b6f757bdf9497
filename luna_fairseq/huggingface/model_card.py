"""Model card of an exported model, written as README.md."""

from pathlib import Path
from typing import Any, Dict, Optional

from luna_fairseq.checks.model_options import plain_options
from luna_fairseq.checks.same_training import stored_options
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
from transformers import {classes}

{loading}
```

| | |
|---|---|
{rows}
"""


def build_model_card(
    checkpoint: Checkpoint, kind: ModelKind, scores: Dict[str, str], has_tokenizer: bool
) -> str:
    """Return the text of README.md: how to load the model, training details, scores and options.

    ``scores`` maps the name of each score to the text to show. An image model has no tokenizer.
    """
    parts = {"model": kind.auto_class, **({"tokenizer": "AutoTokenizer"} if has_tokenizer else {})}
    loading = [
        f"{name} = {auto}.from_pretrained(FOLDER, trust_remote_code=True)" for name, auto in parts.items()
    ]
    rows = {**_training_details(checkpoint), **scores, **_model_options(checkpoint)}
    lines = ["| {} | {} |".format(name, str(value).replace("|", r"\|")) for name, value in rows.items()]
    return _CARD.format(
        title=kind.title,
        classes=", ".join(parts.values()),
        loading="\n".join(loading),
        rows="\n".join(lines),
    )


def _training_details(checkpoint: Checkpoint) -> Dict[str, Any]:
    """Return the known details of the training, keyed by heading, such as "updates"."""
    extra = checkpoint.state.get("extra_state") or {}
    history = (checkpoint.state.get("optimizer_history") or [{}])[-1]
    size = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    # The epoch in a checkpoint is the current one. After an epoch's last batch it is the next one.
    epoch = (extra.get("train_iterator") or {}).get("epoch")
    saving = plain_options((checkpoint.state.get("cfg") or {}).get("checkpoint") or {})
    details = {
        "parameters": f"{size:,}",
        "updates": history.get("num_updates"),
        "epochs": None if epoch is None else epoch - 1,
        # fairseq calls the metric that chooses the best checkpoint a loss, whatever it is.
        f"validation {saving.get('best_checkpoint_metric', 'loss')}": extra.get("val_loss"),
        "source language": getattr(checkpoint.task.cfg, "source_lang", None),
        "target language": getattr(checkpoint.task.cfg, "target_lang", None),
    }
    return {name: value for name, value in details.items() if value is not None}


def find_scores(path: Path, ema: bool, given: Optional[Path] = None) -> Dict[str, str]:
    """Return the scores of a checkpoint as texts with value and settings, keyed by score name.

    The result is empty if no file has scores of the checkpoint.

    Args:
        path: checkpoint file, in the run folder or in its subfolder ``checkpoints``.
        ema: True if the moving average of the weights is exported.
        given: scores.json of luna-evaluate or luna-score. If None, the run's folders are searched for one.

    Raises:
        InputError: A file contains no scores, or ``given`` contains the scores of another checkpoint.
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
    """Return the model options used for training, keyed by option name in Markdown backticks."""
    options = stored_options(checkpoint.state)
    known = type(checkpoint.model).__dataclass.__dataclass_fields__
    return {f"`{name}`": options[name] for name in sorted(options) if name in known}
