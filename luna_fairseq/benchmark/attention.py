"""``causal`` and ``attention``: forms of Luna's attentions on projected heads, the ways in which they are
computed elsewhere, and softmax attention of the same inputs."""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, ClassVar, Dict, List, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.dense import Tokens, dense_attention
from luna_fairseq.anchored.lookup import lookup_attention, naive_lookup_attention
from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, distance_bias
from luna_fairseq.anchored.segments import Layout, by_segments, find_layout
from luna_fairseq.benchmark.task import DTYPES, Case, Job, Row, Task, choice, numbers, require_equal
from luna_fairseq.ops.attention import luna_attention, naive_attention
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights
from luna_fairseq.ops.causal_luna.triton import why_not_triton

# Largest relative RMS difference from the definition in float64: rounding alone.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}
# Checked besides the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Up to here the forms run that keep a matrix for every position, by default.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}
SHORT = 60  # tokens of the last sentence where lengths are mixed
LOOK_UP = 4  # segments that a query looks up
# What forms take, by name: [B, H, ..] or [B, ..]. Some want gradients, and "gradient" is that of the output.
Inputs = Dict[str, Tensor]


def form(x: Inputs, backend: str, decay: bool = False) -> Tensor:
    """A form that the library offers, of q, k, v, pack_k [B, H, T, K] and pack_q [B, H, L, K] as projections
    leave them; v is k where there is none, and rows [B, L] and positions [B, T] are padded where there are.
    With ``decay`` it forgets, as fast as models do at the start."""
    weights = pack_weights(x["pack_q"], x["pack_k"], "softplus")
    q, heads = x["q"], x["q"].size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=q.device))) if decay else None
    parts = q, x["k"], x.get("v", x["k"]), weights, x.get("rows"), x.get("positions")
    output = causal_luna(*parts, backend=backend, log_decay=log_decay)
    # What stands at padded positions has no meaning.
    return output.masked_fill(x["positions"][:, None, :, None], 0.0) if "positions" in x else output


def written_out(*inputs: Any) -> Tensor:
    """What defines :func:`luna_attention`, of the same inputs."""
    return naive_attention(*inputs)[0]


def pack_and_unpack(x: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """P attends to the sentence, and the sentence to what P packed: q, k, v [B, H, T, K] of the sentence,
    pack_q [B, H, L, K] of P; mask [B, T] where keys are padded."""
    packed = attention(x["pack_q"], x["k"], x["v"], x.get("mask"))
    return attention(x["q"], packed, packed)


def anchored(x: Inputs, attention: Callable[..., Tensor] = luna_attention, look_up: str = "") -> Tensor:
    """The same with anchors in both, or in pack with unpack attention that looks up tokens: ``look_up`` is
    "naive" for its definition. strength is gamma [1, H, 1, 1], pack and unpack are distances [B, H, L, T] and
    [B, 1, T, L]; a look-up has its layout, which is of padding [B, T] and rows [B, L]."""
    q, k, v, strength = x["q"], x["k"], x["v"], x["strength"].flatten()
    strength = strength.detach() if look_up else strength  # of all sentences: not to be had from the last one
    bias = distance_bias(strength, x["pack"].to(q.dtype))
    packed = attention(x["pack_q"], k, v, x.get("mask"), 0.0, bias)
    if not look_up:
        return attention(q, packed, packed, None, 0.0, distance_bias(strength, x["unpack"].to(q.dtype)))
    heads, gate = (q, packed, packed), torch.zeros_like(strength)
    if look_up == "naive":
        return naive_lookup_attention(*heads, k, v, gate, LOOK_UP, x["padding"], x["rows"])[0]
    layout = Layout(*(x.get(name) for name in Layout._fields))
    if layout.position is None:
        return dense_attention(*heads, Tokens(k, v, layout.empty, layout.segment), gate, LOOK_UP)[0]
    return lookup_attention(*heads, by_segments(k, v, layout), gate, LOOK_UP).output


def softmax(x: Inputs) -> Tensor:
    """Self-attention with its weights written out."""
    logits = x["q"] @ x["k"].transpose(-2, -1) * x["q"].size(-1) ** -0.5
    if "mask" in x:
        logits = logits.masked_fill(x["mask"][:, None, None, :], float("-inf"))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=dtype).to(logits.dtype) @ x["v"]


def fused(x: Inputs, is_causal: bool = False) -> Tensor:
    """Self-attention by torch's function; without a mask where no key is padded."""
    seen = ~x["mask"][:, None, None, :] if "mask" in x else None
    v = x.get("v", x["k"])
    return F.scaled_dot_product_attention(x["q"], x["k"], v, attn_mask=seen, is_causal=is_causal)


def why_no_sdpa(*unused: Any) -> str:
    """Why scaled_dot_product_attention does not run in this torch, or nothing."""
    there = hasattr(F, "scaled_dot_product_attention")
    return "" if there else f"torch {torch.__version__} has no scaled_dot_product_attention"


def why_no_triton(args: Namespace, case: Case) -> str:
    """Why the Triton form does not run, or nothing."""
    return why_not_triton(torch.device(args.device), DTYPES[args.dtype], args.head_dim, case["l"])


# The definition is also the cumulative sum of the outer products of all positions.
CAUSAL = {
    "cumsum": Row(partial(form, backend="naive"), limited=True, peer=True),
    "chunk": Row(partial(form, backend="chunk"), equals="cumsum"),
    "triton": Row(partial(form, backend="triton"), equals="cumsum", why_not=why_no_triton),
    "decay-naive": Row(partial(form, backend="naive", decay=True), limited=True, optional=True),
    "decay": Row(partial(form, backend="chunk", decay=True), equals="decay-naive", optional=True),
    "decay-triton": Row(partial(form, backend="triton", decay=True), equals="decay-naive", optional=True,
                        why_not=why_no_triton),
    "sdpa": Row(partial(fused, is_causal=True), why_not=why_no_sdpa, peer=True),
}  # fmt: skip
FORMS = {
    "luna-naive": Row(partial(pack_and_unpack, attention=written_out)),
    "luna": Row(pack_and_unpack, equals="luna-naive"),
    "anchored-naive": Row(partial(anchored, attention=written_out), optional=True),
    "anchored": Row(anchored, equals="anchored-naive", optional=True),
    "look-up-naive": Row(partial(anchored, attention=written_out, look_up="naive"), limited=True,
                         optional=True),
    "look-up": Row(partial(anchored, look_up="blocks"), equals="look-up-naive", optional=True),
    "softmax": Row(softmax, limited=True, peer=True),
    "sdpa": Row(fused, equals="softmax", why_not=why_no_sdpa, peer=True),
}  # fmt: skip


def both_passes(row: Row, inputs: Inputs) -> Dict[str, Optional[Tensor]]:
    """The output, and the gradients of all inputs that the form reads (None for others), by name."""
    output, leaves = row.make(inputs), {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(output, [*leaves.values()], inputs["gradient"], allow_unused=True)
    return {"output": output, **{f"gradient of {name}": x for name, x in zip(leaves, gradients)}}


class AttentionTask(Task):
    """Both passes over every form of an attention, in ``kinds`` of cases at every length and l."""

    kinds: ClassVar[List[Case]] = [{}]
    options = {
        **numbers(lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64),
        **numbers(projection_length=[16], max_naive_length=None),
        "--dtype": choice(*DTYPES),
    }

    def of_lengths(self, *lengths: int) -> List[Case]:
        """What is compared at every length, but for the pass."""
        ells = self.args.projection_length
        return [{"l": L, **kind, "T": T} for L in ells for kind in self.kinds for T in lengths]

    def cases(self) -> List[Case]:
        return [{**case, "pass": which} for case in self.of_lengths(*self.args.lengths) for which in PASSES]

    def random(self, **lengths: int) -> Inputs:
        """[B, H, length, K] for every length, as a projection leaves them: a view of [length, B, H, K]."""
        args, made = self.args, {}
        generator = torch.Generator(args.device).manual_seed(args.seed)
        options: Any = {"generator": generator, "dtype": DTYPES[args.dtype], "device": args.device}
        # Nothing is made that is not kept: freed memory would hide as much of what the job takes.
        for name, length in lengths.items():
            heads = torch.randn(length, args.batch, args.heads, args.head_dim, **options).permute(1, 2, 0, 3)
            made[name] = heads.requires_grad_(name != "gradient")
        return made

    def problem(self, case: Case) -> Inputs:
        """The inputs."""
        raise NotImplementedError

    def limit(self) -> int:
        """Longest sequence of the forms that keep a matrix for every position."""
        return self.args.max_naive_length or LONGEST_NAIVE[torch.device(self.args.device).type]

    def why_not(self, row: Row, case: Case) -> str:
        if row.limited and case["T"] > self.limit():
            return f"at lengths beyond --max-naive-length {self.limit()}"
        return super().why_not(row, case)

    def job(self, row: Row, case: Case) -> Job:
        inputs = self.problem(case)
        if case["pass"] == PASSES[0]:
            return partial(torch.no_grad()(row.make), inputs)
        return partial(both_passes, row, inputs)

    def check(self, row: Row) -> float:
        """Output and gradients must be those of the definition in float64; beyond the definition's longest
        sequence, those of the last head."""
        cases = self.of_lengths(SMALL_LENGTH, *self.args.lengths) if row.equals else []
        return max((self.error(row, case) for case in cases if not self.why_not(row, case)), default=0.0)

    def error(self, row: Row, case: Case) -> float:
        """That of one case."""
        inputs, definition, doubled = self.problem(case), self.table[row.equals], {}
        part = slice(-1 if definition.limited and case["T"] > self.limit() else None, None)
        for name, x in inputs.items():
            cut = x[part, part].detach().double() if x.is_floating_point() else x[part]
            doubled[name] = cut.requires_grad_(x.requires_grad)
        expected, actual, errors = both_passes(definition, doubled), both_passes(row, inputs), []
        for what, theirs in expected.items():
            if theirs is not None:
                where = f"at length {case['T']} its {what} differs from {row.equals} in {self.args.dtype}"
                ours = actual[what]
                ours = theirs * float("nan") if ours is None else ours[part, part]
                errors.append(require_equal(where, ours, theirs, TOLERANCES[self.args.dtype]))
        return max(errors)


class CausalAttention(AttentionTask):
    """``causal``."""

    notes = """causal attention: the forms of Luna's beside torch's scaled_dot_product_attention
    of projected heads, Luna's pack weights (softplus) included, the projections themselves left out. cumsum
    sums the outer products of all positions over time: the way the definition is usually trained, and itself
    the library's naive form; decay and decay-triton forget. sdpa is a different function of the same inputs.
    forward: without gradients; forward+backward: gradients of every input. Before anything is timed, output
    and gradients of Luna's other forms were compared with those of cumsum, or decay-naive, in float64, beyond
    its longest sequence those of one head."""
    table = CAUSAL
    options = {
        **AttentionTask.options,
        "--tied": dict(action="store_true", help="keys are values, as in the model by default"),
        "--masks": dict(action="store_true", help="positions on either side and rows of P are padded"),
    }

    def problem(self, case: Case) -> Inputs:
        args, L, T = self.args, case["l"], case["T"]
        x = self.random(pack_q=L, q=T, k=T, pack_k=T, gradient=T, **({} if args.tied else {"v": T}))
        if args.masks:
            even, position = torch.arange(args.batch)[:, None] % 2 == 0, torch.arange(T)
            padded = (even & (position < T // 3)) | (~even & (position >= T - T // 4))
            rows = even & (torch.arange(L) >= max(L - 1, 1))
            x.update(rows=rows.to(args.device), positions=padded.to(args.device))
        return x


class PackAndUnpack(AttentionTask):
    """``attention``."""

    notes = """pack and unpack attention: Luna's beside softmax self-attention, written out and fused
    of projected heads; the projections, those of the packed sequence too, are left out. luna-naive writes the
    weights out; with --with, anchored adds the places of P's rows to both, and look-up reads the tokens of
    four segments in unpack attention. softmax is self-attention of the same inputs with the T x T weights
    written out, sdpa torch's scaled_dot_product_attention. padding half: every second sentence is padded in
    its second half, and the pads are masked; mixed: every second sentence has nine tenths of the length, and
    the last one 60 tokens. forward: without gradients; forward+backward: gradients of every
    input. Before anything is timed, output and gradients were compared with the definitions' in float64."""
    table = FORMS
    kinds = [{"padding": "none"}, {"padding": "half"}, {"padding": "mixed"}]

    def problem(self, case: Case) -> Inputs:
        L, T, H = case["l"], case["T"], self.args.heads
        x = self.random(q=T, k=T, v=T, pack_q=L, gradient=T)
        x["strength"] = torch.full_like(x["gradient"][:1, :, :1, :1], 4.0).requires_grad_()
        padding = torch.zeros(self.args.batch, T, dtype=torch.bool, device=self.args.device)
        if case["padding"] == "half":
            padding[1::2, (T + 1) // 2 :] = True
        elif case["padding"] == "mixed":
            padding[1::2, T - T // 10 :] = True
            padding[-1, SHORT:] = True
        if case["padding"] != "none":
            x["mask"] = padding
        # What layers share where P has places: its padding, both distances, the layout of a look-up.
        x.update(padding=padding, rows=torch.zeros_like(padding[:, :1]).repeat(1, L))
        x["pack"] = beyond_nearest(anchor_distances(padding, x["rows"], H))
        x["unpack"] = beyond_nearest(anchor_distances(padding, x["rows"]).transpose(2, 3))
        layout = find_layout(padding, x["rows"], LOOK_UP)._asdict()
        return {**x, **{name: part for name, part in layout.items() if part is not None}}
