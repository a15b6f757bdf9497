"""README.md of an exported folder: what the model is, how it is loaded, its options and its score."""

from typing import Any, Dict

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


def model_card(checkpoint: Checkpoint, kind: Kind) -> str:
    """The card of a ``checkpoint`` of this ``kind``."""
    rows = {**_facts(checkpoint), **_options(checkpoint)}
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return _CARD.format(title=kind.title, auto=kind.auto, rows="\n".join(lines))


def _facts(checkpoint: Checkpoint) -> Dict[str, Any]:
    extra = checkpoint.state.get("extra_state") or {}
    history = (checkpoint.state.get("optimizer_history") or [{}])[-1]
    size = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    facts = {
        "parameters": f"{size:,}",
        "updates": history.get("num_updates"),
        "epoch": (extra.get("train_iterator") or {}).get("epoch"),
        "validation loss": extra.get("val_loss"),
        "best": extra.get("best"),
        "source language": getattr(checkpoint.task.cfg, "source_lang", None),
        "target language": getattr(checkpoint.task.cfg, "target_lang", None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _options(checkpoint: Checkpoint) -> Dict[str, Any]:
    """The options of the model that the run was given or took from its architecture."""
    model = checkpoint.state["cfg"]["model"]
    options = dict(model) if hasattr(model, "keys") else vars(model)
    known = type(checkpoint.model).__dataclass.__dataclass_fields__
    return {f"`{name}`": options[name] for name in sorted(options) if name in known}
