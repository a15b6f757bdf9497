"""``causal`` and ``attention``: forms of an attention on projected heads."""

import argparse
import copy
from dataclasses import replace
from typing import ClassVar, Dict, List, Tuple

import torch

from luna_fairseq.benchmark import causal, pack_and_unpack, peers
from luna_fairseq.benchmark.heads import Problem, Shape, check_equal, one_pass
from luna_fairseq.benchmark.measure import Case, Job, Settings
from luna_fairseq.benchmark.options import DTYPES, add_projection_length, at_least
from luna_fairseq.benchmark.peers import Form
from luna_fairseq.benchmark.task import Task

# Checked besides the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Up to here the forms run that keep a matrix for every position, by default.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}


class AttentionTask(Task):
    """Both passes over every form of an attention at every length.

    Attributes:
        table: its rows
        limit: longest sequence of the forms that keep a matrix for every position
        single: one head of one sentence, for the warm-up
    """

    table: ClassVar[Dict[str, Form]]
    length = "T"

    def __init__(self, args: argparse.Namespace, settings: Settings):
        super().__init__(args, settings)
        self.limit: int = args.max_naive_length or LONGEST_NAIVE[torch.device(settings.device).type]
        self.single = False

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Lengths, shape and dtype."""
        add = parser.add_argument
        lengths = [32, 128, 512, 1024]
        add(
            "--lengths",
            type=at_least(1),
            nargs="+",
            default=lengths,
            metavar="T",
            help=f"(default: {lengths})",
        )
        for name, default, what in (
            ("batch", 4, "sentences"),
            ("heads", 8, "attention heads"),
            ("head-dim", 64, "width of a head"),
        ):
            add(
                f"--{name}",
                type=at_least(1),
                default=default,
                metavar="N",
                help=f"{what} (default: {default})",
            )
        add_projection_length(parser)
        add("--dtype", choices=list(DTYPES), default="float32", help="of all inputs (default: float32)")
        limited = ", ".join(name for name, form in cls.table.items() if form.limited)
        add(
            "--max-naive-length",
            type=at_least(1),
            default=None,
            metavar="T",
            help="longest sequence of {} (default: {cpu}, on a GPU {cuda})".format(limited, **LONGEST_NAIVE),
        )

    def rows(self) -> Dict[str, Form]:
        return self.table

    def shapes(self) -> List[Tuple[Case, Shape]]:
        """What is compared at every length, by the table's column names, and its shape."""
        args = self.args
        return [
            ({"l": length}, Shape(args.batch, args.heads, args.head_dim, length, args.dtype))
            for length in args.projection_length
        ]

    def cases(self) -> List[Case]:
        lengths = self.args.lengths
        return [{**case, "T": t, "pass": p} for case, _ in self.shapes() for t in lengths for p in PASSES]

    def shape(self, case: Case) -> Shape:
        """Of a case."""
        (shape,) = (
            shape for columns, shape in self.shapes() if all(case[name] == columns[name] for name in columns)
        )
        return replace(shape, batch=1, heads=1) if self.single else shape

    def why_not(self, row: Form, case: Case) -> str:
        if row.limited and case["T"] > self.limit:
            return f"at lengths beyond --max-naive-length {self.limit}"
        return row.why_not(self.shape(case), self.settings) if row.why_not else ""

    def problem(self, case: Case) -> Problem:
        """Inputs, and the gradient of the output."""
        raise NotImplementedError

    def build(self, row: Form, case: Case) -> Problem:
        return self.problem(case)

    def step(self, row: Form, built: Problem, case: Case) -> Job:
        return one_pass(row.compute, built, case["pass"])

    def tiny(self, case: Case) -> Tuple["AttentionTask", Case]:
        """A single head at the same length: another may take other code."""
        single = copy.copy(self)
        single.single = True
        return single, case

    def check(self, rows: Dict[str, Form]) -> None:
        """Every form must give what its definition gives, and the same gradients."""
        for columns, shape in self.shapes():
            for length in (SMALL_LENGTH, *self.args.lengths):
                self.check_case(rows, {**columns, "T": length}, shape)

    def check_case(self, rows: Dict[str, Form], case: Case, shape: Shape) -> None:
        """See :meth:`check`."""
        here = {name: row for name, row in rows.items() if row.equals and not self.why_not(row, case)}
        problem = self.problem(case)
        for reference in dict.fromkeys(row.equals for row in here.values() if row.equals):
            definition = self.table[reference]
            functions = {name: row.compute for name, row in here.items() if row.equals == reference}
            whole = not (definition.limited and case["T"] > self.limit)
            check_equal(functions, reference, definition.compute, problem, shape.dtype, whole)

    def describe(self) -> str:
        return str(self.shapes()[0][1])


class CausalAttention(AttentionTask):
    """``causal``."""

    name = "causal"
    help = "causal attention: the forms of Luna's beside torch's scaled_dot_product_attention"
    notes = """
    Causal attention of projected heads, Luna's pack weights (softplus) included, the projections themselves
    left out. cumsum sums the outer products of all positions over time: the way the definition is usually
    trained, and itself the library's naive form. loop does the same one position at a time. With --with,
    decay and decay-triton are forms that forget, held to decay-naive. sdpa is torch's
    scaled_dot_product_attention with is_causal, a different function of the same inputs. forward: without
    gradients; forward+backward: gradients of every input. Before anything is timed, output and gradients of
    the other forms of Luna were compared with those of cumsum, beyond its longest sequence those of one head.
    """
    panels = ("l", "pass")
    table = peers.CAUSAL

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--tied", action="store_true", help="keys are values: one tensor, as in the model by default"
        )

    def shapes(self) -> List[Tuple[Case, Shape]]:
        return [(case, replace(shape, tied=self.args.tied)) for case, shape in super().shapes()]

    def problem(self, case: Case) -> Problem:
        return causal.make_inputs(self.shape(case), case["T"], self.settings)


class PackAndUnpack(AttentionTask):
    """``attention``."""

    name = "attention"
    help = "pack and unpack attention: Luna's beside softmax self-attention, written out and fused"
    notes = """
    Pack and unpack attention of projected heads; the projections, those of the packed sequence too, are
    left out. luna-naive writes the weights out. With --with, anchored adds the places of P's rows to both
    (what all layers share of them is computed before); look-up reads the tokens of four parts in unpack
    attention, local those of the three parts around a token. softmax is self-attention of the same inputs
    with the T x T weights written out, sdpa torch's scaled_dot_product_attention. padding half: every
    second sentence is padded in its second half, and the pads are masked. forward: without gradients;
    forward+backward: gradients of every input. Before anything is timed, output and gradients of luna were
    compared with luna-naive, those of sdpa with softmax.
    """
    panels = ("l", "padding", "pass")
    table = peers.PACK_AND_UNPACK

    def shapes(self) -> List[Tuple[Case, Shape]]:
        return [
            ({**case, "padding": padding}, replace(shape, padded=padding == "half"))
            for case, shape in super().shapes()
            for padding in ("none", "half")
        ]

    def problem(self, case: Case) -> Problem:
        return pack_and_unpack.make_inputs(self.shape(case), case["T"], self.settings)
