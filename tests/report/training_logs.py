"""Logs of fairseq-train for tests: logs/ has those of a tiny run, and ``write_run`` writes long ones."""

import math
from pathlib import Path

from luna_fairseq.files.scores import write_scores

LOGS = Path(__file__).parent / "logs"
INNER = (
    "2026-01-02 03:04:05 | INFO | train_inner | epoch {epoch:03d}:  {done:5d} / {of} loss={loss:.3f}, "
    "nll_loss={nll:.3f}, ppl={ppl:.2f}, wps={wps:.1f}, ups=7.1, wpb=4000, bsz=120, num_updates={update}, "
    "lr={lr:.6g}, gnorm={gnorm:.3f}, clip=10, train_wall=14, gb_free=20.5, wall={wall:.0f}\n"
)
VALID = (
    "2026-01-02 03:04:05 | INFO | valid | epoch {epoch:03d} | valid on 'valid' subset | loss {loss:.3f} | "
    "nll_loss {nll:.3f} | ppl {ppl:.2f} | bleu {bleu:.2f} | wps 24 | wpb 36 | bsz 8 | "
    "num_updates {update} | best_loss {loss:.3f}\n"
)


ORIGIN = {"checkpoint": "run/averaged.pt", "checkpoint_sha256": "", "settings": {"beam": 5, "lenpen": 1.0}}


def options_line(**changed):
    """Return the line in which the tiny run prints its options, with some options changed."""
    line = next(
        line for line in (LOGS / "simple.log").read_text(encoding="utf-8").splitlines() if "'common'" in line
    )
    for name, value in changed.items():
        before = line.split(f"'{name}': ")[1].split(",")[0]
        line = line.replace(f"'{name}': {before}", f"'{name}': {value}")
    return line + "\n"


def figures(update, speed=1.0):
    """Return plausible figures of a training at an update, without randomness."""
    per_epoch = 1000
    loss = 3 + 6 * math.exp(-update * speed / 8000) + 0.05 * math.sin(update)
    return {
        "update": update,
        "epoch": (update - 1) // per_epoch + 1,
        "done": (update - 1) % per_epoch + 1,
        "of": per_epoch,
        "loss": loss,
        "nll": loss - 1,
        "ppl": 2 ** (loss - 1),
        "bleu": 32 - 4 * loss,
        "wps": 30000 * speed,
        "lr": 0.001 * min(update / 4000, (4000 / update) ** 0.5),
        "gnorm": 1 + 0.3 * math.cos(update),
        "wall": update / 7,
    }


def write_run(folder, updates=100_000, interval=100, speed=1.0, finished=True, **options):
    """Write the log of a run with a line every ``interval`` updates and a validation every 1,000 updates."""
    folder.mkdir(parents=True)
    with (folder / "train.log").open("w", encoding="utf-8") as log:
        log.write(options_line(save_dir=repr(str(folder)), max_update=updates, **options))
        for update in range(interval, updates + 1, interval):
            now = figures(update, speed)
            log.write(INNER.format(**now))
            if update % 1000 == 0:
                log.write(VALID.format(**now))
        if finished:
            log.write("2026-01-02 03:04:05 | INFO | fairseq_cli.train | done training in 9.0 seconds\n")
    return folder


def write_translations(folder, hypotheses, sources, references):
    """Write the output files of fairseq-generate and luna-evaluate."""
    with (folder / "generate-test-lenpen1.txt").open("w", encoding="utf-8") as file:
        for number, (hypothesis, source, reference) in enumerate(zip(hypotheses, sources, references)):
            file.write(f"S-{number}\t{source}\nT-{number}\t{reference}\n")
            file.write(f"H-{number}\t-0.5\t{hypothesis}\nD-{number}\t-0.5\t{hypothesis}\nP-{number}\t-0.1\n")
    scores = [{"name": "BLEU", "value": 27.3, "details": "", "signature": "nrefs:1|case:mixed|tok:13a"}]
    write_scores(folder / "scores.json", scores, folder / "generate-test-lenpen1.txt", ORIGIN)
