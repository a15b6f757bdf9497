"""Run fairseq's commands with this checkout as --user-dir, and parse their output."""

from pathlib import Path

from forked import USER_DIR, run_module

# A model that trains within a second. Its widths differ where this is possible.
TINY = (
    "--encoder-layers 2 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32"
    " --encoder-ffn-embed-dim 48 --decoder-ffn-embed-dim 40 --encoder-attention-heads 4 "
    "--decoder-attention-heads 2"
)


def fairseq(command, *words, folder=None, stdin=None):
    """Run ``fairseq-<command>``. Texts are split at spaces into arguments, a Path is one argument."""
    return run_module(f"fairseq_cli.{command}", words, folder, stdin)


def succeed(command, *words, folder=None, stdin=None):
    """Run a fairseq command, check that it succeeds, and return its output on stdout and stderr."""
    run = fairseq(command, *words, folder=folder, stdin=stdin)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    return run.stdout + run.stderr


def refused(command, *words, folder=None):
    """Run a fairseq command, check that it fails without a traceback, and return the last line on stderr."""
    run = fairseq(command, *words, folder=folder)
    assert run.returncode != 0, run.stdout[-3000:]
    assert "Traceback" not in run.stdout + run.stderr, run.stderr[-3000:]
    return run.stderr.strip().splitlines()[-1]


def plugin(data):
    return ("--user-dir", Path(USER_DIR), data)


def lines(output, kind):
    """Return the lines of fairseq-generate or -interactive with the label ``kind``, as {sentence: text}."""
    found = {}
    for line in output.splitlines():
        if line.startswith(f"{kind}-"):
            number, text = line[len(kind) + 1 :].split("\t", 1)
            found[int(number)] = text
    return found
