"""README.md of an exported folder: what the model is, how it is loaded, its options and its score."""

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
    """The card of a ``checkpoint`` of this ``kind``, with the first of the files ``scores`` that is there.

    Raises:
        InputError: the file does not hold what luna-evaluate and luna-score write
    """
    rows = {**_facts(checkpoint), **_scores(scores), **_options(checkpoint)}
    lines = ["| {} | {} |".format(name, str(value).replace("|", r"\|")) for name, value in rows.items()]
    return _CARD.format(title=kind.title, auto=kind.auto, rows="\n".join(lines))


def _facts(checkpoint: Checkpoint) -> Dict[str, Any]:
    extra = checkpoint.state.get("extra_state") or {}
    history = (checkpoint.state.get("optimizer_history") or [{}])[-1]
    size = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    facts = {
        "parameters": f"{size:,}",
        "updates": history.get("num_updates"),
        "epochs": _finished_epochs(extra.get("train_iterator") or {}),
        "validation loss": extra.get("val_loss"),
        "best": extra.get("best"),
        "source language": getattr(checkpoint.task.cfg, "source_lang", None),
        "target language": getattr(checkpoint.task.cfg, "target_lang", None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _finished_epochs(iterator: Dict[str, Any]) -> Optional[int]:
    """Return the number of finished epochs, or None if it is unknown.

    fairseq stores the epoch in progress. After the last batch of an epoch it stores the next epoch.
    """
    epoch = iterator.get("epoch")
    return None if epoch is None else epoch - 1


def scores_beside(path: Path) -> List[Path]:
    """Where luna-train-bitext and luna-evaluate may have written the scores of the run of the checkpoint
    ``path``."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    return [folder / "scores.json" for folder in (path.parent, run, run / "results")]


def _scores(files: List[Path]) -> Dict[str, str]:
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return {}
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        return {score["name"]: f"{score['value']:.2f} (`{score['signature']}`)" for score in scores}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no scores: give a scores.json of luna-evaluate") from error


def _options(checkpoint: Checkpoint) -> Dict[str, Any]:
    """The options of the model that the run was given or took from its architecture."""
    model = checkpoint.state["cfg"]["model"]
    options = dict(model) if hasattr(model, "keys") else vars(model)
    known = type(checkpoint.model).__dataclass.__dataclass_fields__
    return {f"`{name}`": options[name] for name in sorted(options) if name in known}
