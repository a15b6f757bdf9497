"""torch's launcher, without its thirty lines around the one that a process which failed has said.

python -m luna_fairseq.commands.torchrun takes the arguments of torchrun (python -m torch.distributed.run).
"""

import logging
import sys
from typing import List, Optional

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: Optional[List[str]] = None) -> int:
    """Launch the processes, and wait for them. Exit status: 0, or that of the process that failed first
    (128 + N when signal N ended it)."""
    logging.disable(logging.ERROR)  # what follows says it
    try:
        run.main(argv)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
        print(f"torchrun: process {rank} ended with status {status}, and so did the run", file=sys.stderr)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
