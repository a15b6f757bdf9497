"""Malicious pickles in all files that are loaded, and losses that are NaN or infinite."""

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy
import torch
from fault_world import UPDATES, World, digests
from flips import describe, is_refused
from tallies import EQUAL, FAILED, PICKLES_CHECKED, REFUSED, UNPROTECTED, Tally
from warmed import USER_DIR, run


class Evil:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def pickles(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Make every loader read a malicious pickle, and check that it is not executed.

    Args:
        world: texts, data and checkpoints of the campaign.
        tally: counter of outcomes, updated in place.
        times: function from a number of repetitions to the number for this part of the campaign.
        seed: unused.
    """
    cases = [(form, loader) for form in FORMS for loader in LOADERS]
    chosen = times(len(cases))
    for form, loader in cases[:: max(1, len(cases) // chosen)][:chosen] if chosen else []:
        world.empty_folder()
        trace = world.folder / "evil-was-here"
        path = world.now / "in" / "checkpoint_last.pt"
        path.parent.mkdir()
        FORMS[form](path, world, trace)
        ended = run(LOADERS[loader](world, path), world.log)
        executed = trace.exists()
        if executed:
            trace.rmdir()
        harmless = EQUAL if ended.status == 0 else REFUSED if is_refused(ended) else FAILED
        outcome = harmless if not executed else FAILED if PICKLES_CHECKED else UNPROTECTED
        detail = f"executed: {executed}, {describe(ended)}"
        tally.note(f"a malicious pickle, {form}", loader, outcome, detail)


def _in_a_checkpoint(path: Path, world: World, trace: Path, **how: Any) -> None:
    saved = torch.load(str(world.pretrained), map_location="cpu")
    saved["extra_state"]["evil"] = Evil(trace)
    torch.save(saved, str(path), **how)


def _bare(path: Path, world: World, trace: Path) -> None:
    path.write_bytes(pickle.dumps({"model": Evil(trace)}))


FORMS: Dict[str, Callable[[Path, World, Path], None]] = {
    "in a checkpoint": _in_a_checkpoint,
    "in a checkpoint of an old torch": partial(_in_a_checkpoint, _use_new_zipfile_serialization=False),
    "as the whole file": _bare,
}


def _hub(name: str) -> Callable[[World, Path], List[str]]:
    """Return a function that writes a program with ``from_pretrained``, and returns its command line.

    Args:
        name: class of the model, such as "LunaModel".
    """

    def words(world: World, path: Path) -> List[str]:
        script, data = world.now / "load.py", str(world.folder / "mono")
        script.write_text(
            f"from luna_fairseq.errors import InputError\nfrom luna_fairseq.models import {name}\n"
            f"try:\n    {name}.from_pretrained({str(path.parent)!r}, {path.name!r}, {data!r})\n"
            "except InputError as error:\n    raise SystemExit(f'error: {error}')\n",
            encoding="utf-8",
        )
        return ["python", str(script)]

    return words


def _pixels(world: World, path: Path) -> List[str]:
    """Write images as malicious pickles in numpy files, and return the command that reads them."""
    data = world.now / "pixels"
    for name in ("input", "label"):
        (data / name).mkdir(parents=True)
    for split in ("train", "valid"):
        evil = numpy.array([Evil(world.folder / "evil-was-here")], dtype=object)
        numpy.save(str(data / "input" / f"{split}.npy"), evil, allow_pickle=True)
        (data / "label" / f"{split}.label").write_text("0\n", encoding="ascii")
    words = ["fairseq-train", str(data), "--user-dir", USER_DIR, "--task", "lra-image", "--criterion"]
    return [*words, "lra_cross_entropy", "--arch", "luna_lra_cifar10", "--optimizer", "adam", "--lr", "1e-3",
            "--batch-size", "1", "--max-update", "1", "--save-dir", str(world.now / "out")]  # fmt: skip


LOADERS: Dict[str, Callable[[World, Path], List[str]]] = {
    "fairseq-train": lambda w, p: w.train(p.parent),
    "fairseq-train --restore-file": lambda w, p: w.train(w.now / "out", "--restore-file", str(p)),
    "fairseq-train --finetune-from-model": lambda w, p: w.train(
        w.now / "out", "--finetune-from-model", str(p)
    ),
    "fairseq-generate": lambda w, p: w.generate(p),
    "fairseq-validate": lambda w, p: [
        *("fairseq-validate", str(w.folder / "mono"), "--user-dir", USER_DIR, "--path", str(p)),
        *("--task", "masked_lm", "--batch-size", "4"),
    ],
    "luna-average-checkpoints": lambda w, p: w.average(w.now / "out.pt", [str(p)]),
    "luna-evaluate": lambda w, p: w.evaluate(w.now / "out", p),
    "luna-finetune": lambda w, p: w.finetune(w.now / "out", p),
    "luna-export-huggingface": lambda w, p: w.export(w.now / "out", p),
    "luna-report": lambda w, p: ["luna-report", str(p.parent), "--out", str(w.now / "page.html")],
    "LunaModel.from_pretrained": _hub("LunaModel"),
    "LunaMaskedLM.from_pretrained": _hub("LunaMaskedLM"),
    "LunaLanguageModel.from_pretrained": _hub("LunaLanguageModel"),
    "images for lra-image": _pixels,
}


def losses(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Make the loss of one update NaN or infinite, and then resume without the fault.

    The first run must stop. The resumed run must equal an undisturbed run.

    Args:
        world: texts, data and checkpoints of the campaign.
        tally: counter of outcomes, updated in place.
        times: function from a number of repetitions to the number for this part of the campaign.
        seed: unused.
    """
    out = world.empty_folder()
    world.succeed(world.train(out))
    expected = digests(out)

    cases = [(value, update) for value in ("nan", "inf") for update in range(1, UPDATES)]
    for value, update in cases[:: max(1, len(cases) // max(1, times(len(cases))))]:
        out = world.empty_folder()
        words = world.train(out)
        ended = run(words, world.log, first=partial(spoil_loss, float(value), update))
        good = ended.status > 0 and "Nan/Inf" in ended.output
        tally.note(f"a loss of {value}", "fairseq-train", REFUSED if good else FAILED, describe(ended))
        for crash in out.glob("crash.pt"):
            crash.unlink()
        second = run(words, world.log)
        same = second.status == 0 and digests(out) == expected
        tally.note(f"a restart after {value}", "fairseq-train", EQUAL if same else FAILED, describe(second))


def spoil_loss(value: float, update: int) -> None:
    """Patch the criterion of this process so that it multiplies the loss of one update by a value.

    Args:
        value: factor, NaN or infinity.
        update: number of the update, counted from 1.
    """
    from fairseq.criterions.label_smoothed_cross_entropy import (
        LabelSmoothedCrossEntropyCriterion as Criterion,
    )

    compute, number = Criterion.compute_loss, [0]

    def compute_loss(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss, nll = compute(self, model, *args, **kwargs)
        number[0] += model.training
        return (loss * value if number[0] == update and model.training else loss), nll

    Criterion.compute_loss = compute_loss
