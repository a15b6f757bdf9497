"""Checkpoints of small models with the folders of their dictionaries, and commands that read them."""

import importlib
import logging

import torch
from every_kind import BASE, VARIANTS, small_model
from omegaconf import OmegaConf

from fairseq.dataclass.configs import FairseqConfig

# Kind of model -> fairseq task, architecture, and files of the dictionaries.
TASKS = {
    "translation": ("translation", "luna", ("dict.a.txt", "dict.b.txt")),
    "shared translation": ("translation", "luna", ("dict.a.txt", "dict.b.txt")),
    "causal LM": ("language_modeling", "luna_lm", ("dict.txt",)),
    "masked LM": ("masked_lm", "luna_bert", ("dict.txt",)),
    "classifier": ("lra-text", "luna_lra_listop", ("src-bin/dict.txt", "label-bin/dict.txt")),
}
ADD_ONE = ("masked_lm", "lra-text")  # tasks that add a symbol to the dictionary


def save(kind, variant, folder):
    """Write a checkpoint model.pt and its dictionaries data/ into a folder.

    Returns:
        path of the checkpoint, folder of the dictionaries, and the fairseq model
    """
    task, arch, names = TASKS[kind]
    model, _ = small_model(kind, variant)
    path, data = folder / "model.pt", folder / "data"
    cfg = {
        **OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True),
        "task": {"_name": task, "data": str(data)},
        "model": {"_name": arch, "arch": arch, **BASE[kind], **VARIANTS[kind][variant]},
        "criterion": {"_name": "cross_entropy"},
    }
    if task == "translation":
        cfg["task"].update(source_lang="a", target_lang="b")
    elif task != "lra-text":
        cfg["task"]["tokens_per_sample"] = 40
    state = {"args": None, "cfg": cfg, "model": model.state_dict(), "extra_state": {"best": 3.5}}
    state["extra_state"]["train_iterator"] = {"epoch": 41, "iterations_in_epoch": 0}
    state["optimizer_history"] = [{"num_updates": 12, "criterion_name": "", "lr_scheduler_state": {}}]
    torch.save(state, str(path))
    for name, size in zip(names, sizes(model)):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        words = [f"w{number} 1\n" for number in range(size - 4 - (task in ADD_ONE))]
        (data / name).write_text("".join(words), encoding="utf-8")
    return path, data, model


def command(name, *words):
    """Run a command of luna_fairseq.huggingface, and return its status."""
    status = importlib.import_module(f"luna_fairseq.huggingface.{name}").main([str(word) for word in words])
    logging.disable(logging.NOTSET)
    return status


def sizes(model):
    """Return the sizes of the source and the target dictionary of a model."""
    embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding) and m.padding_idx == 1]
    tokens = [m.num_embeddings for m in embeddings if m.num_embeddings < 30]
    return tokens[0], tokens[-1]
