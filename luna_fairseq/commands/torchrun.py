"""``python -m luna_fairseq.commands.torchrun``: torch's launcher, with the exit status of the training.

torch's own launcher exits with status 1 if training stopped after SIGTERM. This one exits with 143 if the
processes saved a checkpoint or had not begun to train, so that a batch system can tell a stop from a failure.
scripts/train_torchrun.sh uses it, and sends the signal to the training processes. The launcher ignores
SIGTERM and SIGHUP of its own while they train.
"""

import sys
from typing import List

from luna_fairseq.child_processes import STOPPED, TERMINATED


def main(words: List[str]) -> int:
    """Run torch's launcher. Return 0, 143 if a signal stopped training, or 1 if training failed."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from luna_fairseq.engine.processes import ignore_stop_signals_in_launcher

    ignore_stop_signals_in_launcher()
    try:
        run.main(words)
    except ChildFailedError as error:
        # The launcher ends the other processes, whose statuses say nothing.
        _, first = error.get_first_failure()
        return TERMINATED if first.exitcode in STOPPED else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
