"""Length of a run, read from its checkpoint."""

import subprocess
import sys
from argparse import Namespace

import torch

CHECK = """
import sys
from pathlib import Path
from luna_fairseq.commands.run_length import check_not_longer
check_not_longer(Path(sys.argv[1]), "--out", ["DATA", *sys.argv[2:]])
"""


def test_a_longer_run_is_refused_by_a_process_that_has_not_imported_fairseq(tmp_path):
    """torch.load then refuses the classes of the configuration, unless the plugin allows them."""
    state = {
        "args": Namespace(arch="luna"),
        "extra_state": {"train_iterator": {"epoch": 4, "iterations_in_epoch": 7}},
        "optimizer_history": [{"num_updates": 37}],
    }
    torch.save(state, tmp_path / "checkpoint_last.pt")
    for option, limit, message in (("--max-update", "36", "37 updates"), ("--max-epoch", "3", "4 epochs")):
        command = [sys.executable, "-c", CHECK, str(tmp_path), option, limit]
        stopped = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert stopped.returncode == 1 and message in stopped.stderr
