"""The paper's translation model can be read in one sitting: what one step of training runs through is
counted."""

import sys
from pathlib import Path
from typing import NamedTuple

import torch

# Wherever it is imported from: an installed package may be a link to the checkout.
PACKAGE = "/luna_fairseq/"


class Traced(NamedTuple):
    """What of the package ran: its files, their lines, their functions, and the most calls within each
    other."""

    files: int
    lines: int
    functions: int
    depth: int


def traced(run):
    """Call ``run`` and count. The frames of other packages between two of ours add nothing to the depth."""
    codes, depths = set(), [0]

    def event(frame, what, _):
        code = frame.f_code
        if what != "call" or PACKAGE not in code.co_filename:
            return
        if code.co_name.startswith("<"):  # a comprehension is a function of its own up to Python 3.11
            return
        codes.add(code)
        depth = 0
        while frame is not None:
            name = frame.f_code.co_name
            depth += (PACKAGE in frame.f_code.co_filename) and not name.startswith("<")
            frame = frame.f_back
        depths.append(depth)

    sys.setprofile(event)
    try:
        run()
    finally:
        sys.setprofile(None)
    files = {code.co_filename for code in codes}
    lines = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)
    return Traced(len(files), lines, len(codes), max(depths)), codes


def step_of_training():
    from tiny_luna import batch, example, tiny_model

    model = tiny_model(dtype=torch.float32).train()
    source, target = (batch(x) for x in example())

    def run():
        logits, _ = model(source, None, target)
        logits.logsumexp(dim=-1).sum().backward()

    return run


def test_a_step_of_training_reads_in_one_sitting():
    run = step_of_training()
    run()  # what is done once: imports, caches
    found, codes = traced(run)
    listing = sorted(f"{c.co_filename.rpartition(PACKAGE)[2]}: {c.co_name}" for c in codes)
    if __name__ == "__main__":
        print("\n".join(listing))
    print(found)
    assert found.files <= 14, listing
    assert found.lines <= 1700
    assert found.functions <= 60, listing
    assert found.depth <= 8


if __name__ == "__main__":
    test_a_step_of_training_reads_in_one_sitting()
