"""Commands with invalid options or archives, which must end with one line and leave no incomplete file."""

import json
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple

from bad_archives import archives
from fault_world import World
from flips import in_one_line
from tallies import FAILED, REFUSED, Tally
from warmed import run, seeded


class Case(NamedTuple):
    """Command with bad input.

    Attributes:
        what: description of the bad input.
        where: "FAULT:COMMAND", the kind of fault and the command for the tables.
        words: command line.
    """

    what: str
    where: str
    words: List[str]


OPTIONS = {
    "fairseq-train": """
        --encoder-layers 0|--decoder-layers 0|--dropout 1|--attention-dropout -0.1|--projection-length 0
        |--projection-length x|--encoder-attention-heads 3|--decoder-projected-attention-heads 5
        |--pack-activation gelu|--luna-backend fast|--clip-norm -1
        |--restore-file nowhere.pt|--arch luna_none|--task nothing
        |--optimizer none|--lr-scheduler none|--criterion none|--warmup-init-lr 9|--apollo-rebound none
        |--encoder-layerdrop 2|--seed x|--lr x|--word-dropout 2|--encoder-embed-dim 0
        |--max-source-positions 0|--max-update x""",
    "luna-prepare-bitext": """
        --vocab-size 0|--vocab-size x|--vocab-size 5|--vocab-size 99999|--source-lang tgt|--source-lang xx
        |--trainpref nowhere|--validpref nowhere|--testpref nowhere|--max-length 0|--max-length 1
        |--max-ratio 0.5|--workers 0|--subword none|--destdir TEXT""",
    "luna-prepare-text": """
        --vocab-size 0|--vocab-size 99999|--train nowhere|--shards 0|--shards 999|--workers x
        |--dict nowhere|--dict TEXT|--gpt2-encoder-json nowhere|--destdir TEXT""",
    "luna-prepare-task": "--vocabulary nowhere|--destdir TEXT|--workers 0",
    "luna-prepare-lra": """
        --train 0|--train x|--min-length 1|--min-length 90|--max-length 3|--mirror nowhere|--workers 0
        |--destdir TEXT""",
    "luna-average-checkpoints": """
        --inputs nowhere.pt|--inputs TEXT|--num-update-checkpoints 0|--num-update-checkpoints 99
        |--num-epoch-checkpoints 2|--checkpoint-upper-bound 0|--output nowhere/average.pt|--output .""",
    "luna-evaluate": "--path nowhere.pt|--path TEXT|--beam 0|--lenpen x|--test-set wmt99|--results TEXT",
    "luna-finetune": """
        --pretrained nowhere.pt|--pretrained TEXT|--batch-sizes 0|--lrs x|--at-a-time 0|--epochs 0
        |--patience 0|--out TEXT""",
    "luna-export-huggingface": "--path nowhere.pt|--path TEXT|--data nowhere",
}


def bad_inputs(world: World, tally: Tally, times: Callable[[int], int], seed: int) -> None:
    """Run all commands with bad input, or a random part of them, and count how they end.

    Args:
        world: texts, data and checkpoints of the campaign.
        tally: counter of outcomes, updated in place.
        times: function from a number of repetitions to the number for this part of the campaign.
        seed: seed of random choices.
    """
    groups = [list(options(world)), list(archives(world, Case))]
    for cases in groups:
        chosen = seeded(seed, "bad input", len(cases)).sample(cases, times(len(cases)))
        for case in sorted(chosen, key=cases.index):
            out = world.empty_folder()
            ended = run(case.words, world.log)
            left = half_written(out) + [name for name in evil(world)]
            good = in_one_line(ended) and not left
            detail = f"{case.what}: status {ended.status}, left {left[:5]}: {ended.output[-500:]}"
            kind, _, where = case.where.partition(":")
            tally.note(kind, where, REFUSED if good else FAILED, detail)


def options(world: World) -> Iterator[Case]:
    """Yield a case for each bad option in ``OPTIONS``."""
    out = world.now / "out"
    commands = {
        "fairseq-train": world.train(out),
        "luna-prepare-bitext": world.prepare_bitext(out),
        "luna-prepare-text": world.prepare_text(out),
        "luna-prepare-task": world.prepare_task(out),
        "luna-prepare-lra": world.prepare_listops(out),
        "luna-average-checkpoints": world.average(out / "average.pt"),
        "luna-evaluate": world.evaluate(out),
        "luna-finetune": world.finetune(out),
        "luna-export-huggingface": world.export(out),
    }
    text = str(world.folder / "text" / "train.src")
    for program, listed in OPTIONS.items():
        for option in " ".join(listed.split()).split("|"):
            words = [text if word == "TEXT" else word for word in option.split()]
            line = commands[program]
            end = line.index("--") if "--" in line else len(line)
            if words[0] == "--inputs":  # a number of checkpoints needs a folder
                line, end = [program, "--output", str(out.with_suffix(".pt"))], 3
            yield Case(option, f"a bad option:{program}", [*line[:end], *words, *line[end:]])


def half_written(out: Path) -> List[str]:
    """Return the names of files in the output folder, or beside it, that do not belong to a finished step."""
    if out.is_file():
        return [out.name]
    finished = {"archives"}
    for record in out.glob("*.json"):
        finished.add(record.name)
        if record.name.startswith(("prepare", "evaluate", "finetune")):
            steps = json.loads(record.read_text(encoding="utf-8"))
            finished.update(name for step in steps.values() for name in step["files"])
    found = [path for path in out.parent.rglob("*") if path.is_file()]
    names = [path.relative_to(out).as_posix() if out in path.parents else path.name for path in found]
    # Encoded text is complete, and the step that reads it writes it again.
    allowed = (".log", "archives/", "encoded/")
    return sorted(n for n in names if n not in finished and not any(part in n for part in allowed))


def evil(world: World) -> List[str]:
    """Return the paths of files that an archive has written outside its folder."""
    places = [world.folder, world.folder.parent, Path("/tmp")]
    return [str(path) for place in places for path in place.glob("evil*")]
