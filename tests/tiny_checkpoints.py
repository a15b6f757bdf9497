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
TASK_OPTIONS = {
    "translation": {"source_lang": "a", "target_lang": "b"},
    "language_modeling": {"tokens_per_sample": 40},
    "masked_lm": {"tokens_per_sample": 40},
    "lra-text": {},
}
ADD_ONE = ("masked_lm", "lra-text")  # tasks that add a symbol to the dictionary


def training_state(task, arch, options, data, **task_options):
    """Return the contents of a checkpoint after 40 epochs and 12 updates, without the weights.

    ``options`` are options of the model, and ``data`` is the folder of the dictionaries.
    """
    cfg = {
        **OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True),
        "task": {"_name": task, "data": str(data), **task_options},
        "model": {"_name": arch, "arch": arch, **options},
        "criterion": {"_name": "cross_entropy"},
    }
    return {
        "args": None,
        "cfg": cfg,
        "extra_state": {"best": 3.5, "train_iterator": {"epoch": 41, "iterations_in_epoch": 0}},
        "optimizer_history": [{"num_updates": 12, "criterion_name": "", "lr_scheduler_state": {}}],
    }


def write_dictionary(path, words):
    """Write a dictionary file, in which every word has the count 1. Create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")


def save(kind, variant, folder):
    """Write a checkpoint model.pt and its dictionaries data/ into a folder.

    Returns:
        path of the checkpoint, folder of the dictionaries, and the fairseq model
    """
    task, arch, names = TASKS[kind]
    model, _ = small_model(kind, variant)
    path, data = folder / "model.pt", folder / "data"
    state = training_state(task, arch, {**BASE[kind], **VARIANTS[kind][variant]}, data, **TASK_OPTIONS[task])
    torch.save({**state, "model": model.state_dict()}, str(path))
    for name, size in zip(names, sizes(model)):
        write_dictionary(data / name, [f"w{number}" for number in range(size - 4 - (task in ADD_ONE))])
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
