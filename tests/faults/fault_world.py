"""Folder for the campaign: small texts, prepared data, and models with some thousand parameters."""

import hashlib
import random
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from warmed import USER_DIR, Ended, run

WORDS = [f"w{i}" for i in range(20)]
TINY = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --decoder-embed-dim 8"
    " --encoder-ffn-embed-dim 12 --decoder-ffn-embed-dim 12"
    " --encoder-attention-heads 2 --decoder-attention-heads 2"
)
QUIET = "--log-format simple --log-interval 1 --num-workers 0 --seed 1"
ADAM = f"--optimizer adam --adam-betas (0.9,0.98) --lr 0.003 {QUIET} --required-batch-size-multiple 1"
TRAIN = (
    f"-s src -t tgt -a luna_base_tied {TINY} --projection-length 4 --share-all-embeddings --max-tokens 100"
    f" --optimizer apollo --lr 0.02 --warmup-updates 5 --warmup-init-lr 0.001"
    " --lr-scheduler milestone --milestones 9"
    f" --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 {QUIET}"
    " --save-interval-updates 2 --keep-interval-updates 2 --keep-last-epochs 3"
)
MASKED = (
    "--task masked_lm --criterion masked_lm -a luna_bert --encoder-layers 1 --encoder-embed-dim 8"
    " --encoder-ffn-embed-dim 12 --encoder-attention-heads 2 --projection-length 4 --max-positions 64"
    f" --tokens-per-sample 64 --batch-size 16 {ADAM} --max-update 2"
)
UPDATES = 8


class World:
    """Texts, data and checkpoints that commands read. Commands write to the subfolder ``now``.

    A method with the name of a command returns a command line that writes to the output folder ``out``.

    Args:
        folder: folder to create. It must not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.log = folder, folder / "now", folder / "log"
        (folder / "text").mkdir(parents=True)
        self.now.mkdir()
        self._write_texts()

    def build(self) -> None:
        """Prepare the data and train the models."""
        self.succeed(self.prepare_bitext(self.folder / "bitext"))
        self.succeed(self.prepare_text(self.folder / "mono"))
        self.succeed(self.train(self.folder / "trained"))
        pretrain = ["fairseq-train", str(self.folder / "mono"), "--user-dir", USER_DIR, *MASKED.split()]
        self.succeed([*pretrain, "--save-dir", str(self.folder / "pretrained")])
        self.succeed(self.prepare_task(self.folder / "task"))

    def succeed(self, words: List[str], **options: Any) -> Ended:
        """Run a command and stop the campaign if it fails."""
        ended = run(words, self.log, **options)
        if ended.status:
            raise SystemExit(f"{' '.join(words)}: {ended.output[-2000:]}")
        return ended

    def empty_folder(self) -> Path:
        """Empty the folder ``now``, and return the path of the output in it.

        The path is the same for all runs, because checkpoints contain it and would differ otherwise.
        """
        shutil.rmtree(str(self.now), ignore_errors=True)
        self.now.mkdir()
        return self.now / "out"

    def _write_texts(self) -> None:
        generator, text = random.Random(1), self.folder / "text"
        for split, number in (("train", 60), ("valid", 8), ("test", 8)):
            lines = [generator.choices(WORDS, k=generator.randint(2, 6)) for _ in range(number)]
            for side, order in (("src", 1), ("tgt", -1)):
                content = "".join(" ".join(line[::order]) + "\n" for line in lines)
                (text / f"{split}.{side}").write_text(content, encoding="utf-8")
        for name, number in (("train", 40), ("dev", 8), ("test", 8)):
            rows = [" ".join(generator.choices(WORDS, k=4)) for _ in range(number)]
            lines = ["sentence\tlabel", *(f"{row}\t{n % 2}" for n, row in enumerate(rows))]
            if name == "test":
                lines = ["index\tsentence", *(f"{n}\t{row}" for n, row in enumerate(rows))]
            (text / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def prepare_bitext(self, out: Path) -> List[str]:
        prefixes = [
            w for s in ("train", "valid", "test") for w in (f"--{s}pref", str(self.folder / "text" / s))
        ]
        return ["luna-prepare-bitext", "-s", "src", "-t", "tgt", *prefixes, "--vocab-size", "24",
                "--destdir", str(out)]  # fmt: skip

    def prepare_text(self, out: Path) -> List[str]:
        files = [
            w for s in ("train", "valid", "test") for w in (f"--{s}", str(self.folder / "text" / f"{s}.src"))
        ]
        return ["luna-prepare-text", *files, "--vocab-size", "24", "--destdir", str(out)]

    def prepare_task(self, out: Path) -> List[str]:
        words = ["luna-prepare-task", "SST-2", str(self.folder / "text"), "--vocabulary"]
        return [*words, str(self.folder / "mono"), "--destdir", str(out)]

    def prepare_listops(self, out: Path) -> List[str]:
        words = "luna-prepare-lra listops --train 20 --valid 5 --test 5 --min-length 10 --max-length 40"
        return [*words.split(), "--workers", "1", "--destdir", str(out)]

    def train(self, out: Path, *more: str, data: Optional[Path] = None) -> List[str]:
        words = ["fairseq-train", str(data or self.folder / "bitext"), "--user-dir", USER_DIR, *TRAIN.split()]
        return [*words, "--max-update", str(UPDATES), "--save-dir", str(out), *more]

    def generate(self, path: Path, *more: str, data: Optional[Path] = None) -> List[str]:
        words = ["fairseq-generate", str(data or self.folder / "bitext"), "--user-dir", USER_DIR]
        return [*words, "--path", str(path), "-s", "src", "-t", "tgt", "--beam", "2", "--batch-size", "8",
                "--max-len-b", "8", *more]  # fmt: skip

    def average(self, out: Path, inputs: Sequence[str] = ()) -> List[str]:
        given = inputs or (str(self.folder / "trained"), "--num-update-checkpoints", "2")
        return ["luna-average-checkpoints", "--inputs", *given, "--output", str(out)]

    def evaluate(self, out: Path, path: Optional[Path] = None, data: Optional[Path] = None) -> List[str]:
        words = ["luna-evaluate", str(data or self.folder / "bitext"), "--path", str(path or self.last)]
        return [*words, "--results", str(out), "--beam", "2", "--", "--max-len-b", "8"]

    def finetune(self, out: Path, path: Optional[Path] = None) -> List[str]:
        words = [
            "luna-finetune",
            "SST-2",
            str(self.folder / "task"),
            "--pretrained",
            str(path or self.pretrained),
        ]
        words += ["--out", str(out), "--batch-sizes", "16", "--lrs", "1e-3", "--epochs", "2"]
        return [*words, "--", "--num-workers", "0"]

    def export(self, out: Path, path: Optional[Path] = None) -> List[str]:
        words = ["luna-export-huggingface", str(out), "--path", str(path or self.pretrained)]
        return [*words, "--data", str(self.folder / "mono")]

    @property
    def last(self) -> Path:
        """Return the last checkpoint of the translation model."""
        return self.folder / "trained" / "checkpoint_last.pt"

    @property
    def pretrained(self) -> Path:
        """Return the last checkpoint of the masked language model."""
        return self.folder / "pretrained" / "checkpoint_last.pt"


# Files that differ between equal runs: logs, and records of the sizes and times of such files.
UNEQUAL = (".log", "evaluate.json", "finetune.json", "run.json")
TRANSLATIONS = ("S-", "T-", "H-", "D-")


def digests(path: Path) -> Dict[str, str]:
    """Return {relative path: SHA-256} of the files in a folder. A single file has the path ""."""
    if path.is_file():
        return {"": digest_of_file(path)}
    files = (p for p in sorted(path.rglob("*")) if p.is_file() and not p.name.endswith(UNEQUAL))
    return {str(p.relative_to(path)): digest_of_file(p) for p in files}


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file. Of logs of fairseq-generate, only the translations are compared."""
    if path.suffix == ".pt":
        return digest_of_checkpoint(path)
    content = path.read_bytes()
    if path.name.startswith("generate-"):
        kept = tuple(prefix.encode() for prefix in TRANSLATIONS)
        content = b"\n".join(line for line in content.split(b"\n") if line.startswith(kept))
    return hashlib.sha256(content).hexdigest()


def digest_of_checkpoint(path: Path) -> str:
    """Return a digest of a checkpoint: weights, optimizer, data position, best loss and update count."""
    try:
        saved = torch.load(str(path), map_location="cpu")
    except Exception as error:  # whatever a damaged file raises
        return f"unreadable: {type(error).__name__}"
    extra = saved.get("extra_state") or {}
    parts = [
        saved["model"],
        saved.get("last_optimizer_state"),
        extra.get("train_iterator"),
        extra.get("best"),
    ]
    if saved.get("optimizer_history"):
        parts.append(saved["optimizer_history"][-1]["num_updates"])
    state = hashlib.sha256()
    _feed(state.update, parts)
    return state.hexdigest()


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    """Pass the content of a nested value to a hash.

    Args:
        update: method ``update`` of the hash.
        value: nested lists and dictionaries of tensors, numbers and strings.
    """
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            # torch adds its own defaults to the options of a loaded optimizer.
            if key != "param_groups":
                update(f"{key}=".encode())
                _feed(update, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(update, item)
    elif isinstance(value, torch.Tensor):
        update(f"{tuple(value.shape)}{value.dtype}".encode() + value.contiguous().numpy().tobytes())
    else:
        update(repr(value).encode())
