"""Length of a run, read from its checkpoint."""

import subprocess
import sys
from argparse import Namespace

import torch

CHECK = """
import sys
from pathlib import Path
from luna_fairseq.commands.run_length import check_not_longer
from luna_fairseq.errors import InputError
for limit in ("--max-update=36", "--max-epoch=3", "--max-update=37", "--max-epoch=4"):
    try:
        check_not_longer(Path(sys.argv[1]), "--out", ["DATA", limit])
        print("accepted")
    except InputError as error:
        print(error)
"""


def test_a_longer_run_is_refused_by_a_process_that_has_not_imported_fairseq(tmp_path):
    """torch.load then refuses the classes of the configuration, unless the plugin allows them."""
    state = {
        "args": Namespace(arch="luna"),
        "extra_state": {"train_iterator": {"epoch": 4, "iterations_in_epoch": 7}},
        "optimizer_history": [{"num_updates": 37}],
    }
    torch.save(state, tmp_path / "checkpoint_last.pt")
    command = [sys.executable, "-c", CHECK, str(tmp_path)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert "37 updates" in printed[0] and "4 epochs" in printed[1] and printed[2:] == ["accepted"] * 2
