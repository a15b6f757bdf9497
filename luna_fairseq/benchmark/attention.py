"""Benchmarks ``causal`` and ``attention``: Luna's attentions and softmax attention on projected heads.

Luna packs a context into a short sequence P of length L (pack attention), and every query attends to P
(unpack attention).
"""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, ClassVar, Dict, List, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.dense import Tokens, dense_attention
from luna_fairseq.anchored.lookup import mixed_lookup_attention, naive_lookup_attention
from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, distance_bias
from luna_fairseq.anchored.segments import Layout, arrange_tokens, find_layout
from luna_fairseq.benchmark.task import DTYPES, Case, Job, Row, Task, choice, numbers, require_equal
from luna_fairseq.ops.attention import luna_attention, naive_attention
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights
from luna_fairseq.ops.causal_luna.triton import why_not_triton

# Largest relative RMS error that is allowed, compared with the definition in float64.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}
# Length at which results are checked, in addition to the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Default of --max-naive-length, for rows that store a matrix for every position.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}
# Number of tokens of the last sentence in a batch with mixed lengths.
SHORT = 60
# Number of segments, groups of adjacent tokens, that a query looks up.
LOOK_UP = 4
# Inputs by name, [B, H, ..] or [B, ..]. "gradient" is the gradient of the output.
Inputs = Dict[str, Tensor]


def luna_causal(x: Inputs, backend: str, decay: bool = False) -> Tensor:
    """Compute Luna's causal attention with one of the library's backends.

    B is the batch size, H the number of heads, T the sequence length, K the head width, and L the number of
    rows of the packed sequence P.

    Args:
        x: inputs q, k, v and pack_k [B, H, T, K] and pack_q [B, H, L, K]. Without v, the keys are used as
            values. Optional masks are ``rows`` [B, L], True at masked rows of P, and ``positions`` [B, T],
            True at padding.
        backend: "naive", "chunk" or "triton".
        decay: forget earlier tokens, with the initial decay rates of a model (default: False).

    Returns:
        The output [B, H, T, K], zero at padded positions.
    """
    weights = pack_weights(x["pack_q"], x["pack_k"], "softplus")
    q, heads = x["q"], x["q"].size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=q.device))) if decay else None
    inputs = q, x["k"], x.get("v", x["k"]), weights, x.get("rows"), x.get("positions")
    output = causal_luna(*inputs, backend=backend, log_decay=log_decay)
    # The output at padded positions has no meaning, so it must not be compared.
    return output.masked_fill(x["positions"][:, None, :, None], 0.0) if "positions" in x else output


def explicit_attention(*inputs: Any) -> Tensor:
    """Compute attention with explicit weights, as a reference for :func:`luna_attention`.

    Args:
        *inputs: arguments of :func:`luna_attention`.

    Returns:
        The output of the attention, without the weights.
    """
    return naive_attention(*inputs)[0]


def pack_and_unpack(x: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """Compute pack attention followed by unpack attention.

    B is the batch size, H the number of heads, T the sequence length, K the head width, and L the number of
    rows of the packed sequence P.

    Args:
        x: inputs q, k and v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P, and an optional mask [B,
            T], True at padding.
        attention: attention function (default: :func:`luna_attention`).

    Returns:
        The output [B, H, T, K].
    """
    packed = attention(x["pack_q"], x["k"], x["v"], x.get("mask"))
    return attention(x["q"], packed, packed)


def anchored(x: Inputs, attention: Callable[..., Tensor] = luna_attention, look_up: str = "") -> Tensor:
    """Compute pack and unpack attention with anchors, which are places in the sentence for the rows of P.

    B is the batch size, H the number of heads, T the sequence length, K the head width, and L the number of
    rows of the packed sequence P.

    Args:
        x: inputs of :func:`pack_and_unpack`, and the strength [1, H, 1, 1] of the bias by distance. The
            distances between anchors and tokens are ``pack`` [B, H, L, T] and ``unpack`` [B, 1, T, L]. A
            look-up also needs the fields of its :class:`~luna_fairseq.anchored.segments.Layout`, and the
            masks ``padding`` [B, T] and ``rows`` [B, L].
        attention: attention function (default: :func:`luna_attention`).
        look_up: kind of unpack attention. "" attends to P with a bias by distance. "blocks" also attends to
            tokens near the best rows of P, and "naive" computes the same by its definition (default: "").

    Returns:
        The output [B, H, T, K].
    """
    q, k, v, strength = x["q"], x["k"], x["v"], x["strength"].flatten()
    # The strength has a gradient that sums over all sentences, but checks may compare only the last sentence.
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
    return mixed_lookup_attention(*heads, arrange_tokens(k, v, layout), gate, LOOK_UP)


def softmax(x: Inputs) -> Tensor:
    """Compute self-attention with explicit weights for all pairs of positions.

    B is the batch size, H the number of heads, T the sequence length and K the head width.

    Args:
        x: inputs q, k and v [B, H, T, K], and an optional mask [B, T], True at padding.

    Returns:
        The output [B, H, T, K].
    """
    logits = x["q"] @ x["k"].transpose(-2, -1) * x["q"].size(-1) ** -0.5
    if "mask" in x:
        logits = logits.masked_fill(x["mask"][:, None, None, :], float("-inf"))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=dtype).to(logits.dtype) @ x["v"]


def fused(x: Inputs, is_causal: bool = False) -> Tensor:
    """Compute self-attention with torch's fused function.

    B is the batch size, H the number of heads, T the sequence length and K the head width.

    Args:
        x: inputs q, k and v [B, H, T, K], and an optional mask [B, T], True at padding. Without v, the keys
            are used as values.
        is_causal: mask later positions (default: False).

    Returns:
        The output [B, H, T, K].
    """
    is_token = ~x["mask"][:, None, None, :] if "mask" in x else None
    v = x.get("v", x["k"])
    return F.scaled_dot_product_attention(x["q"], x["k"], v, attn_mask=is_token, is_causal=is_causal)


def why_no_sdpa(*unused: Any) -> str:
    """Return the reason why this version of torch has no ``scaled_dot_product_attention``.

    Args:
        *unused: ignored arguments of ``Row.why_not``.

    Returns:
        A clause with the reason, or an empty string if torch has the function.
    """
    is_available = hasattr(F, "scaled_dot_product_attention")
    return "" if is_available else f"torch {torch.__version__} has no scaled_dot_product_attention"


def why_no_triton(args: Namespace, case: Case) -> str:
    """Return the reason why the Triton backend cannot run a case.

    Args:
        args: parsed options of the command.
        case: settings of the measurement, with the packed length under "l".

    Returns:
        A clause with the reason, or an empty string if the backend can run the case.
    """
    return why_not_triton(torch.device(args.device), DTYPES[args.dtype], args.head_dim, case["l"])


# The row "cumsum" is the definition: the cumulative sum of the outer products of all positions.
CAUSAL = {
    "cumsum": Row(partial(luna_causal, backend="naive"), limited=True, peer=True),
    "chunk": Row(partial(luna_causal, backend="chunk"), equals="cumsum"),
    "triton": Row(partial(luna_causal, backend="triton"), equals="cumsum", why_not=why_no_triton),
    "decay-naive": Row(partial(luna_causal, backend="naive", decay=True), limited=True, optional=True),
    "decay": Row(partial(luna_causal, backend="chunk", decay=True), equals="decay-naive", optional=True),
    "decay-triton": Row(partial(luna_causal, backend="triton", decay=True), equals="decay-naive",
                        optional=True, why_not=why_no_triton),
    "sdpa": Row(partial(fused, is_causal=True), why_not=why_no_sdpa, peer=True),
}  # fmt: skip
FORMS = {
    "luna-naive": Row(partial(pack_and_unpack, attention=explicit_attention)),
    "luna": Row(pack_and_unpack, equals="luna-naive"),
    "anchored-naive": Row(partial(anchored, attention=explicit_attention), optional=True),
    "anchored": Row(anchored, equals="anchored-naive", optional=True),
    "look-up-naive": Row(partial(anchored, attention=explicit_attention, look_up="naive"), limited=True,
                         optional=True),
    "look-up": Row(partial(anchored, look_up="blocks"), equals="look-up-naive", optional=True),
    "softmax": Row(softmax, limited=True, peer=True),
    "sdpa": Row(fused, equals="softmax", why_not=why_no_sdpa, peer=True),
}  # fmt: skip


def forward_and_backward(row: Row, inputs: Inputs) -> Dict[str, Optional[Tensor]]:
    """Run the forward and backward pass of an attention.

    Args:
        row: implementation of the attention.
        inputs: inputs by name.

    Returns:
        A dictionary with the "output", and a "gradient of ..." for each input. A gradient is None if the
        attention does not use the input.
    """
    output, leaves = row.make(inputs), {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(output, [*leaves.values()], inputs["gradient"], allow_unused=True)
    return {"output": output, **{f"gradient of {name}": x for name, x in zip(leaves, gradients)}}


class AttentionTask(Task):
    """Base class of benchmarks on attention.

    There is a case for each pass (forward, or forward and backward), sequence length T, and length L of the
    packed sequence P.

    Attributes:
        kinds: further settings in which the rows are compared, such as kinds of padding.
    """

    kinds: ClassVar[List[Case]] = [{}]
    options = {
        **numbers(lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64),
        **numbers(projection_length=[16], max_naive_length=None),
        "--dtype": choice(*DTYPES, help="data type of the inputs"),
    }

    def cases_at(self, *lengths: int) -> List[Case]:
        """Return a case for each combination of sequence length, packed length and further settings.

        The cases have no entry for the pass (forward, or forward and backward).

        Args:
            *lengths: sequence lengths T.

        Returns:
            A list of dictionaries with "T", the packed length "l", and the further settings.
        """
        packed_lengths = self.args.projection_length
        return [{"l": L, **kind, "T": T} for L in packed_lengths for kind in self.kinds for T in lengths]

    def cases(self) -> List[Case]:
        """Return the cases of :meth:`cases_at`, each with and without the backward pass."""
        return [{**case, "pass": which} for case in self.cases_at(*self.args.lengths) for which in PASSES]

    def random_heads(self, **lengths: int) -> Inputs:
        """Create random inputs with the memory layout of projected heads.

        Args:
            **lengths: sequence length of each input.

        Returns:
            The inputs by name, each [batch size, heads, length, head width].
        """
        args, inputs = self.args, {}
        generator = torch.Generator(args.device).manual_seed(args.seed)
        options: Any = {"generator": generator, "dtype": DTYPES[args.dtype], "device": args.device}
        # No temporary tensors are created here. The job could reuse their freed memory, and its own need for
        # memory would seem smaller.
        for name, length in lengths.items():
            heads = torch.randn(length, args.batch, args.heads, args.head_dim, **options).permute(1, 2, 0, 3)
            inputs[name] = heads.requires_grad_(name != "gradient")
        return inputs

    def make_inputs(self, case: Case) -> Inputs:
        """Create the inputs of a case.

        Args:
            case: settings of the measurement.

        Returns:
            The inputs by name.
        """
        raise NotImplementedError

    def limit(self) -> int:
        """Return the longest sequence length for rows that store a matrix for every position."""
        return self.args.max_naive_length or LONGEST_NAIVE[torch.device(self.args.device).type]

    def why_not(self, row: Row, case: Case) -> str:
        """Return the reason why a row cannot run a case, such as too long a sequence.

        Args:
            row: implementation to measure.
            case: settings of the measurement.

        Returns:
            A clause with the reason, or an empty string if the row can run the case.
        """
        if row.limited and case["T"] > self.limit():
            return f"lengths beyond --max-naive-length {self.limit()}"
        return super().why_not(row, case)

    def job(self, row: Row, case: Case) -> Job:
        """Create inputs, and return a function that runs the forward pass, or forward and backward pass.

        Args:
            row: implementation to measure.
            case: settings of the measurement. Its "pass" is "forward" or "forward+backward".

        Returns:
            A function without arguments.
        """
        inputs = self.make_inputs(case)
        if case["pass"] == PASSES[0]:
            return partial(torch.no_grad()(row.make), inputs)
        return partial(forward_and_backward, row, inputs)

    def check(self, row: Row) -> float:
        """Compare the output and the gradients with the definition in float64.

        If a sequence is longer than ``--max-naive-length``, only the last head of the last sentence is
        compared.

        Args:
            row: row of the table.

        Returns:
            The largest error, divided by the tolerance.
        """
        cases = self.cases_at(SMALL_LENGTH, *self.args.lengths) if row.equals else []
        return max((self.error(row, case) for case in cases if not self.why_not(row, case)), default=0.0)

    def error(self, row: Row, case: Case) -> float:
        """Compute the error of a row in one case.

        Args:
            row: implementation to check.
            case: settings of the comparison.

        Returns:
            The largest error of the output and the gradients, divided by the tolerance.
        """
        inputs, definition, double_inputs = self.make_inputs(case), self.table[row.equals], {}
        part = slice(-1 if definition.limited and case["T"] > self.limit() else None, None)
        for name, x in inputs.items():
            selected = x[part, part].detach().double() if x.is_floating_point() else x[part]
            double_inputs[name] = selected.requires_grad_(x.requires_grad)
        expected = forward_and_backward(definition, double_inputs)
        actual, errors = forward_and_backward(row, inputs), []
        for name, right in expected.items():
            if right is not None:
                message = f"at length {case['T']} its {name} differs from {row.equals} in {self.args.dtype}"
                result = actual[name]
                result = right * float("nan") if result is None else result[part, part]
                errors.append(require_equal(message, result, right, TOLERANCES[self.args.dtype]))
        return max(errors)


class CausalAttention(AttentionTask):
    """Benchmark ``causal``: Luna's causal attention and softmax attention."""

    notes = """Measure Luna's causal attention beside torch's scaled_dot_product_attention.

    The inputs are projected heads, so that projections are not measured. Luna's pack weights are measured.
    The case "forward" has no gradients, and "forward+backward" computes the gradients of all inputs.

    Rows: cumsum is the definition, a cumulative sum over the outer products of all positions. chunk and
    triton compute the same result in blocks of positions, with torch and with a Triton kernel. decay and
    decay-triton also forget earlier tokens. sdpa is softmax attention of the same inputs, a different
    function.

    Before anything is timed, the output and the gradients of chunk, triton and decay are compared with their
    definitions in float64."""
    example = "--lengths 512 1024 --tied"
    table = CAUSAL
    options = {
        **AttentionTask.options,
        "--tied": dict(action="store_true", help="use the keys as values, as the model does by default"),
        "--masks": dict(action="store_true", help="mask some positions and some rows of P"),
    }

    def make_inputs(self, case: Case) -> Inputs:
        """Create the inputs of :func:`luna_causal`.

        Args:
            case: settings of the measurement, with the lengths "T" and "l".

        Returns:
            The inputs by name.
        """
        args, L, T = self.args, case["l"], case["T"]
        x = self.random_heads(pack_q=L, q=T, k=T, pack_k=T, gradient=T, **({} if args.tied else {"v": T}))
        if args.masks:
            is_even, position = torch.arange(args.batch)[:, None] % 2 == 0, torch.arange(T)
            padded = (is_even & (position < T // 3)) | (~is_even & (position >= T - T // 4))
            rows = is_even & (torch.arange(L) >= max(L - 1, 1))
            x.update(rows=rows.to(args.device), positions=padded.to(args.device))
        return x


class PackAndUnpack(AttentionTask):
    """Benchmark ``attention``: pack and unpack attention without a causal mask."""

    notes = """Measure Luna's pack and unpack attention beside softmax self-attention.

    The inputs are projected heads, so that projections are not measured. The case "forward" has no gradients,
    and "forward+backward" computes the gradients of all inputs.

    Rows: luna is pack attention followed by unpack attention, and luna-naive computes the same with explicit
    weights. softmax is self-attention of the same inputs with explicit weights, and sdpa uses torch's
    scaled_dot_product_attention. Optional rows (--with): anchored adds a bias by the distance between tokens
    and rows of P. look-up reads the tokens of four segments in unpack attention.

    The padding is "none", "half" (every second sentence has half the length) or "mixed" (every second
    sentence has nine tenths of the length, and the last one 60 tokens).

    Before anything is timed, the output and the gradients are compared with the definitions in float64."""
    example = "--lengths 1024 --with look-up"
    table = FORMS
    kinds = [{"padding": "none"}, {"padding": "half"}, {"padding": "mixed"}]

    def make_inputs(self, case: Case) -> Inputs:
        """Create the inputs of :func:`anchored`, some of which the other rows use too.

        Args:
            case: settings of the measurement, with the lengths "T" and "l" and the kind of padding.

        Returns:
            The inputs by name.
        """
        L, T, H = case["l"], case["T"], self.args.heads
        x = self.random_heads(q=T, k=T, v=T, pack_q=L, gradient=T)
        x["strength"] = torch.full_like(x["gradient"][:1, :, :1, :1], 4.0).requires_grad_()
        padding = torch.zeros(self.args.batch, T, dtype=torch.bool, device=self.args.device)
        if case["padding"] == "half":
            padding[1::2, (T + 1) // 2 :] = True
        elif case["padding"] == "mixed":
            padding[1::2, T - T // 10 :] = True
            padding[-1, SHORT:] = True
        if case["padding"] != "none":
            x["mask"] = padding
        # An anchored model computes the distances and the layout of the look-up once for all layers, so they
        # are inputs here.
        x.update(padding=padding, rows=torch.zeros_like(padding[:, :1]).repeat(1, L))
        x["pack"] = beyond_nearest(anchor_distances(padding, x["rows"], H))
        x["unpack"] = beyond_nearest(anchor_distances(padding, x["rows"]).transpose(2, 3))
        layout = find_layout(padding, x["rows"], LOOK_UP)._asdict()
        return {**x, **{name: part for name, part in layout.items() if part is not None}}
