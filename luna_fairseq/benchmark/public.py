"""``public``: the peers' attentions beside implementations that other people have published for PyTorch."""

import argparse
import importlib.util
from argparse import Namespace
from functools import partial
from typing import Any, Dict, List, NamedTuple, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark.equality import relative_rms, require_equal
from luna_fairseq.benchmark.measure import Case, Job
from luna_fairseq.benchmark.options import at_least
from luna_fairseq.benchmark.public_attentions import BLOCK, PAIRS, Side
from luna_fairseq.benchmark.task import Task
from luna_fairseq.peers import PeerOptions, build_attention

HEADS, HEAD_DIM = 8, 64
# Several blocks, as many as BigBird wants; the length at which outputs are compared.
SHORTEST = 12 * BLOCK


class Row(NamedTuple):
    """Whose implementation."""

    public: bool
    peer: bool
    optional: bool = False


class Public(Task):
    """``public``."""

    name = "public"
    help = "attentions of other papers beside public implementations of them"
    notes = f"""
    Forward and backward of one layer's attention, float32, B 1, H {HEADS}, width {HEADS * HEAD_DIM}, windows
    and blocks of {BLOCK}: ours beside a package that others have published. Linear attention, Performer,
    local attention and Reformer on projected heads; Longformer and BigBird with their projections but the
    last, Linformer and Sinkhorn with all. Before anything is timed, outputs were compared where both compute
    the same function: not where they draw at random or initialise as they like.
    """
    length = "T"
    panels = ("attention",)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Lengths, and which attentions."""
        add = parser.add_argument
        add("--lengths", type=at_least(SHORTEST), nargs="+", default=[1024, 4096], metavar="T",
            help=f"of {SHORTEST} or more; cut to a multiple of {BLOCK} (default: 1024 4096)")  # fmt: skip
        add("--attentions", nargs="+", choices=list(PAIRS), default=list(PAIRS), metavar="NAME",
            help=f"of {'; '.join(PAIRS)} (default: all)")  # fmt: skip

    def rows(self) -> Dict[str, Row]:
        return {"ours": Row(False, False), "public": Row(True, True)}

    def cases(self) -> List[Case]:
        lengths = sorted({T // BLOCK * BLOCK for T in self.args.lengths})
        return [{"attention": name, "T": T} for name in self.args.attentions for T in lengths]

    def why_not(self, row: Row, case: Case) -> str:
        pair = PAIRS[case["attention"]]
        if row.public and importlib.util.find_spec(pair.module) is None:
            return f"{pair.package} is not installed"
        return ""

    def check(self, rows: Dict[str, Row]) -> None:
        """Both sides must have the same output where they compute the same function."""
        for name in dict.fromkeys(case["attention"] for case in self.cases()):
            case = {"attention": name, "T": SHORTEST}
            if PAIRS[name].equal and len(rows) == 2 and not self.why_not(rows["public"], case):
                ours, theirs = (self.side(row, case).compute() for row in rows.values())
                require_equal(name, "it differs from the public one", relative_rms(ours, theirs))

    def side(self, row: Row, case: Case) -> Side:
        """What is measured of a row: the same weights and inputs for both."""
        pair, T = PAIRS[case["attention"]], case["T"]
        torch.manual_seed(self.settings.seed)
        options = Namespace(**{**vars(PeerOptions()), **pair.options(T)})
        C = HEADS * HEAD_DIM
        module = build_attention(pair.attention, C, HEADS, pair.form, options, max_positions=T)
        module.to(self.settings.device)
        x = torch.randn(T, 1, C).to(self.settings.device).requires_grad_()
        with torch.no_grad():
            parts = [part.contiguous() for part in module.project(x)]
        parts = [part.requires_grad_() for part in parts]
        return (pair.theirs if row.public else pair.ours)(module, x, parts)

    def build(self, row: Row, case: Case) -> Tuple[Side, Tensor]:
        side = self.side(row, case)
        with torch.no_grad():
            return side, torch.ones_like(side.compute())

    def step(self, row: Row, built: Tuple[Side, Tensor], case: Case) -> Job:
        return partial(forward_and_back, *built)

    def tiny(self, case: Case) -> Tuple["Public", Case]:
        return self, {**case, "T": SHORTEST}


def forward_and_back(side: Side, gradient: Tensor) -> Tuple[Any, ...]:
    """The gradients of inputs and parameters."""
    return torch.autograd.grad(side.compute(), side.leaves, gradient, allow_unused=True)
