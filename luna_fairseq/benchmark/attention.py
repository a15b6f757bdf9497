"""Tasks ``causal`` and ``attention``: Luna's attentions and softmax attention on projected heads."""

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

# Largest relative RMS difference from the definition in float64, due to rounding.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}
# Length that is checked in addition to the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Default of --max-naive-length, for forms that keep a matrix for every position.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}
# Number of tokens in the last sentence of a batch with mixed lengths.
SHORT = 60
# Number of segments that a query looks up.
LOOK_UP = 4
# Inputs by name, [B, H, ..] or [B, ..]. "gradient" is the gradient of the output.
Inputs = Dict[str, Tensor]


def form(x: Inputs, backend: str, decay: bool = False) -> Tensor:
    """Compute Luna's causal attention with one of the library's backends.

    Args:
        x: inputs q, k, v and pack_k [B, H, T, K] and pack_q [B, H, L, K]. Without v, the keys are the values.
            The masks rows [B, L] and positions [B, T] are True at padding.
        backend: "naive", "chunk" or "triton".
        decay: forget with the initial decay rates of a model (default: False).

    Returns:
        Output [B, H, T, K], zero at padded positions.
    """
    weights = pack_weights(x["pack_q"], x["pack_k"], "softplus")
    q, heads = x["q"], x["q"].size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=q.device))) if decay else None
    parts = q, x["k"], x.get("v", x["k"]), weights, x.get("rows"), x.get("positions")
    output = causal_luna(*parts, backend=backend, log_decay=log_decay)
    # The output at padded positions has no meaning, so it is not compared.
    return output.masked_fill(x["positions"][:, None, :, None], 0.0) if "positions" in x else output


def written_out(*inputs: Any) -> Tensor:
    """Compute attention by its definition, as a reference for :func:`luna_attention`.

    Args:
        *inputs: arguments of :func:`luna_attention`.
    """
    return naive_attention(*inputs)[0]


def pack_and_unpack(x: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """Compute pack attention followed by unpack attention.

    Args:
        x: inputs q, k and v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P, and mask [B, T], True at
            padding.
        attention: attention function (default: :func:`luna_attention`).
    """
    packed = attention(x["pack_q"], x["k"], x["v"], x.get("mask"))
    return attention(x["q"], packed, packed)


def anchored(x: Inputs, attention: Callable[..., Tensor] = luna_attention, look_up: str = "") -> Tensor:
    """Compute pack and unpack attention with anchors.

    Args:
        x: inputs of :func:`pack_and_unpack`, with strength [1, H, 1, 1] (gamma), the distances pack [B, H, L,
            T] and unpack [B, 1, T, L], and, for a look-up, its layout with padding [B, T] and rows [B, L].
        attention: attention function (default: :func:`luna_attention`).
        look_up: empty for anchored unpack attention (the default); otherwise unpack attention looks up
            tokens, and "naive" selects the definition of the look-up.
    """
    q, k, v, strength = x["q"], x["k"], x["v"], x["strength"].flatten()
    # The gradient of the strength sums over all sentences, so the last sentence alone cannot be compared.
    strength = strength.detach() if look_up else strength
    bias = distance_bias(strength, x["pack"].to(q.dtype))
    packed = attention(x["pack_q"], k, v, x.get("mask"), 0.0, bias)
    if not look_up:
        return attention(q, packed, packed, None, 0.0, distance_bias(strength, x["unpack"].to(q.dtype)))
    heads, gate = (q, packed, packed), torch.zeros_like(strength)
    if look_up == "naive":
        return naive_lookup_attention(*heads, k, v, gate, LOOK_UP, x["padding"], x["rows"])[0]
    layout = Layout(*(x.get(name) for name in Layout._fields))
    if layout.position is None:
        return dense_attention(*heads, Tokens(k, v, layout.padding_mask, layout.segment), gate, LOOK_UP)[0]
    return lookup_attention(*heads, by_segments(k, v, layout), gate, LOOK_UP).output


def softmax(x: Inputs) -> Tensor:
    """Compute self-attention with explicit weights [B, H, T, T].

    Args:
        x: inputs q, k and v [B, H, T, K], and mask [B, T], True at padding.
    """
    logits = x["q"] @ x["k"].transpose(-2, -1) * x["q"].size(-1) ** -0.5
    if "mask" in x:
        logits = logits.masked_fill(x["mask"][:, None, None, :], float("-inf"))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=dtype).to(logits.dtype) @ x["v"]


def fused(x: Inputs, is_causal: bool = False) -> Tensor:
    """Compute self-attention with torch's fused function.

    Args:
        x: inputs q, k and v [B, H, T, K], and mask [B, T], True at padding. Without v, the keys are the
            values.
        is_causal: mask later positions (default: False).
    """
    seen = ~x["mask"][:, None, None, :] if "mask" in x else None
    v = x.get("v", x["k"])
    return F.scaled_dot_product_attention(x["q"], x["k"], v, attn_mask=seen, is_causal=is_causal)


def why_no_sdpa(*unused: Any) -> str:
    """Return why scaled_dot_product_attention is not available in this torch; empty if it is.

    Args:
        *unused: ignored; see ``Row.why_not``.
    """
    is_available = hasattr(F, "scaled_dot_product_attention")
    return "" if is_available else f"torch {torch.__version__} has no scaled_dot_product_attention"


def why_no_triton(args: Namespace, case: Case) -> str:
    """Return why the Triton form does not run; empty if it does.

    Args:
        args: parsed options of the command.
        case: case to measure.
    """
    return why_not_triton(torch.device(args.device), DTYPES[args.dtype], args.head_dim, case["l"])


# "cumsum", the cumulative sum of the outer products of all positions, is the definition.
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
    """Run the forward and backward pass.

    Args:
        row: row of the table.
        inputs: inputs by name.

    Returns:
        The output and the gradients by name. The gradient of an input that the row does not read is None.
    """
    output, leaves = row.make(inputs), {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(output, [*leaves.values()], inputs["gradient"], allow_unused=True)
    return {"output": output, **{f"gradient of {name}": x for name, x in zip(leaves, gradients)}}


class AttentionTask(Task):
    """Base class of attention tasks: forward and backward pass, at every length and every length of P.

    Attributes:
        kinds: further settings in which the rows are compared, such as kinds of padding.
    """

    kinds: ClassVar[List[Case]] = [{}]
    options = {
        **numbers(lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64),
        **numbers(projection_length=[16], max_naive_length=None),
        "--dtype": choice(*DTYPES),
    }

    def cases_at(self, *lengths: int) -> List[Case]:
        """Return the cases at the given lengths, without the pass.

        Args:
            *lengths: sequence lengths T.
        """
        packed_lengths = self.args.projection_length
        return [{"l": L, **kind, "T": T} for L in packed_lengths for kind in self.kinds for T in lengths]

    def cases(self) -> List[Case]:
        return [{**case, "pass": which} for case in self.cases_at(*self.args.lengths) for which in PASSES]

    def random(self, **lengths: int) -> Inputs:
        """Create random heads [B, H, length, K], with the memory layout that a projection leaves.

        Args:
            **lengths: sequence length by the name of the input.
        """
        args, made = self.args, {}
        generator = torch.Generator(args.device).manual_seed(args.seed)
        options: Any = {"generator": generator, "dtype": DTYPES[args.dtype], "device": args.device}
        # No temporary tensors are created here: the job could reuse their freed memory, which would hide a
        # part of what the job needs.
        for name, length in lengths.items():
            heads = torch.randn(length, args.batch, args.heads, args.head_dim, **options).permute(1, 2, 0, 3)
            made[name] = heads.requires_grad_(name != "gradient")
        return made

    def problem(self, case: Case) -> Inputs:
        """Create the inputs of a case.

        Args:
            case: case to measure.
        """
        raise NotImplementedError

    def limit(self) -> int:
        """Return the longest sequence for forms that keep a matrix for every position."""
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
        """Compare output and gradients with the definition in float64.

        Beyond the longest sequence of the definition, only the last head of the last sentence is compared.

        Args:
            row: row of the table.

        Returns:
            The largest error, divided by the tolerance.
        """
        cases = self.cases_at(SMALL_LENGTH, *self.args.lengths) if row.equals else []
        return max((self.error(row, case) for case in cases if not self.why_not(row, case)), default=0.0)

    def error(self, row: Row, case: Case) -> float:
        """Return the error of a row in one case, divided by the tolerance.

        Args:
            row: row of the table.
            case: case to compare.
        """
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
    """Task ``causal``: causal attention."""

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
        "--tied": dict(action="store_true", help="use the keys as values, as the model does by default"),
        "--masks": dict(action="store_true", help="pad positions on either side and rows of P"),
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
    """Task ``attention``: pack and unpack attention without a causal mask."""

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
        # The layers of an anchored model share the padding, both distances and the layout of the look-up.
        x.update(padding=padding, rows=torch.zeros_like(padding[:, :1]).repeat(1, L))
        x["pack"] = beyond_nearest(anchor_distances(padding, x["rows"], H))
        x["unpack"] = beyond_nearest(anchor_distances(padding, x["rows"]).transpose(2, 3))
        layout = find_layout(padding, x["rows"], LOOK_UP)._asdict()
        return {**x, **{name: part for name, part in layout.items() if part is not None}}
