"""Several runs of fairseq-train, each a process of its own forked from one that has imported fairseq already.

    python forked.py '[["folder of the log", "option", ...], ...]'

The runs follow one another; ends with the first status that is not 0.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from commands import USER_DIR


def train(*runs):
    """Train with each list of words (a Path is one word, a text is split); every run ends with status 0."""
    argvs = [
        [part for word in words for part in ([str(word)] if isinstance(word, Path) else word.split())]
        for words in runs
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    line = [sys.executable, __file__, json.dumps(argvs)]
    run = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    return run.stdout + run.stderr


def main():
    from fairseq_cli.train import cli_main

    for argv in json.loads(sys.argv[1]):
        process = os.fork()
        if process == 0:
            sys.argv = ["fairseq-train", "--user-dir", USER_DIR, *argv]
            cli_main()
            sys.exit(0)
        status = os.waitpid(process, 0)[1]
        if status != 0:
            sys.exit(1)


if __name__ == "__main__":
    main()
