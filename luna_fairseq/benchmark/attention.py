"""Benchmarks ``causal`` and ``attention``: Luna's attention variants against softmax attention.

The inputs are queries, keys and values that are already projected and split into heads, so projections are
not measured. Luna packs the keys and values into a short sequence P of L rows (pack attention). Every query
then attends to P (unpack attention).

The inputs are keyed by name: "q", "k" and "v" [B, H, T, K] for batch size B, H heads, T tokens and head width
K; "pack_q" [B, H, L, K], the queries of pack attention; and optionally "mask" [B, T], True at padding.
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
from luna_fairseq.benchmark.task import (
    DTYPES,
    Case,
    Job,
    Task,
    Variant,
    choice_option,
    number_options,
    require_equal,
)
from luna_fairseq.ops.attention import key_mask, naive_attention, softmax_attention
from luna_fairseq.ops.causal_luna import causal_luna, causal_pack_weights
from luna_fairseq.ops.causal_luna.triton import why_not_triton

# Maximum relative RMS error allowed, compared with the definition in float64.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}
# Length at which results are checked, in addition to the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Default of --max-naive-length: longest sequence for variants that store a matrix for every position.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}
# Number of tokens in the last sentence of a batch with mixed lengths.
SHORT = 60
# Number of segments, groups of adjacent tokens, that a query looks up.
LOOK_UP = 4
# Inputs of an attention variant, keyed by name. "gradient" is the gradient of the output.
Inputs = Dict[str, Tensor]


def luna_causal(x: Inputs, backend: str, decay: bool = False) -> Tensor:
    """Compute Luna's causal attention [B, H, T, K] with the backend "naive", "chunk", "parallel" or "triton".

    ``x`` holds queries "q" and keys "k" [B, H, T, K], and the queries "pack_q" [B, H, L, K] and keys "pack_k"
    [B, H, T, K] of pack attention, for B sentences of T tokens, H heads of width K, and L rows of P. Optional
    tensors are "v" (default: the keys), "rows" [B, L], True at masked rows of P, and "positions" [B, T], True
    at padding. With ``decay``, earlier tokens are gradually forgotten, at the initial rates of a model.
    """
    weights = causal_pack_weights(x["pack_q"], x["pack_k"], "softplus")
    q, heads = x["q"], x["q"].size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=q.device))) if decay else None
    inputs = q, x["k"], x.get("v", x["k"]), weights, x.get("rows"), x.get("positions")
    output = causal_luna(*inputs, backend=backend, log_decay=log_decay)
    # The output at padding positions is undefined, so it must not be compared.
    return output.masked_fill(x["positions"][:, None, :, None], 0.0) if "positions" in x else output


def explicit_attention(*inputs: Any) -> Tensor:
    """Compute the output of :func:`softmax_attention` with an explicit matrix of attention weights."""
    return naive_attention(*inputs)[0]


def pack_and_unpack(x: Inputs, attention: Callable[..., Tensor] = softmax_attention) -> Tensor:
    """Compute non-causal Luna attention [B, H, T, K]: "pack_q" attends to the tokens, then "q" to the result.

    "q", "k", "v" are [B, H, T, K], "pack_q" is [B, H, L, K]. The optional "mask" [B, T] is True at padding.
    """
    packed = attention(x["pack_q"], x["k"], x["v"], key_mask(x.get("mask")))
    return attention(x["q"], packed, packed)


def anchored_attention(
    x: Inputs, attention: Callable[..., Tensor] = softmax_attention, look_up: str = ""
) -> Tensor:
    """Compute Luna's pack and unpack attention with a bias toward nearby tokens.

    Every row of P has an anchor, a position in the sentence. In addition to queries, keys and values, ``x``
    has the distances between anchors and tokens, "pack" [B, H, L, T] and "unpack" [B, 1, T, L], and the scale
    "strength" [1, H, 1, 1] of the bias.

    With ``look_up``, every token also attends to the tokens around the anchors of the four rows with its
    largest weights. ``look_up`` names the implementation, "blocks" (fast) or "naive". ``x`` then also has
    "padding" [B, T], True at padding, "rows" [B, L], True at masked rows of P, and the fields of
    :class:`~luna_fairseq.anchored.segments.Layout`.
    """
    q, k, v, strength = x["q"], x["k"], x["v"], x["strength"].flatten()
    # The strength has a gradient that sums over all sentences, but checks may compare only the last sentence.
    strength = strength.detach() if look_up else strength
    bias = distance_bias(strength, x["pack"].to(q.dtype))
    packed = attention(x["pack_q"], k, v, key_mask(x.get("mask")), 0.0, bias)
    if not look_up:
        return attention(q, packed, packed, None, 0.0, distance_bias(strength, x["unpack"].to(q.dtype)))
    heads, gate = (q, packed, packed), torch.zeros_like(strength)
    if look_up == "naive":
        return naive_lookup_attention(*heads, k, v, gate, LOOK_UP, x["padding"], x["rows"])[0]
    layout = Layout(*(x.get(name) for name in Layout._fields))
    if layout.position is None:
        tokens = Tokens(k, v, layout.padding_mask, layout.segment)
        return dense_attention(*heads, tokens, gate, LOOK_UP)[0]
    return mixed_lookup_attention(*heads, arrange_tokens(k, v, layout), gate, LOOK_UP)


def explicit_self_attention(x: Inputs) -> Tensor:
    """Compute softmax self-attention with explicit weights. An optional "mask" [B, T] is True at padding."""
    logits = x["q"] @ x["k"].transpose(-2, -1) * x["q"].size(-1) ** -0.5
    if "mask" in x:
        logits = logits.masked_fill(x["mask"][:, None, None, :], float("-inf"))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=dtype).to(logits.dtype) @ x["v"]


def fused_attention(x: Inputs, is_causal: bool = False) -> Tensor:
    """Compute softmax self-attention with torch's ``scaled_dot_product_attention``."""
    is_token = ~x["mask"][:, None, None, :] if "mask" in x else None
    v = x.get("v", x["k"])
    return F.scaled_dot_product_attention(x["q"], x["k"], v, attn_mask=is_token, is_causal=is_causal)


def missing_sdpa(*unused: Any) -> str:
    """Return an error message if this version of torch has no fused attention, otherwise ""."""
    is_available = hasattr(F, "scaled_dot_product_attention")
    return "" if is_available else f"torch {torch.__version__} has no scaled_dot_product_attention"


def missing_triton(args: Namespace, case: Case) -> str:
    """Return why the Triton kernels cannot run in a setting, or "" if they can."""
    return why_not_triton(torch.device(args.device), DTYPES[args.dtype], args.head_dim, case["l"])


# Variants of the tasks causal and attention. "cumsum" is the definition of Luna's causal attention: the
# cumulative sum of the outer products of all positions.
CAUSAL = {
    "cumsum": Variant(partial(luna_causal, backend="naive"), limited=True, peer=True),
    "chunk": Variant(partial(luna_causal, backend="chunk"), equals="cumsum"),
    "parallel": Variant(partial(luna_causal, backend="parallel"), equals="cumsum"),
    "triton": Variant(partial(luna_causal, backend="triton"), equals="cumsum", skip_reason=missing_triton),
    "decay-naive": Variant(partial(luna_causal, backend="naive", decay=True), limited=True, optional=True),
    "decay": Variant(partial(luna_causal, backend="chunk", decay=True), equals="decay-naive", optional=True),
    "decay-parallel": Variant(partial(luna_causal, backend="parallel", decay=True), equals="decay-naive",
                              optional=True),
    "decay-triton": Variant(partial(luna_causal, backend="triton", decay=True), equals="decay-naive",
                        optional=True, skip_reason=missing_triton),
    "sdpa": Variant(partial(fused_attention, is_causal=True), skip_reason=missing_sdpa, peer=True),
}  # fmt: skip
BIDIRECTIONAL = {
    "luna-naive": Variant(partial(pack_and_unpack, attention=explicit_attention)),
    "luna": Variant(pack_and_unpack, equals="luna-naive"),
    "anchored-naive": Variant(partial(anchored_attention, attention=explicit_attention), optional=True),
    "anchored": Variant(anchored_attention, equals="anchored-naive", optional=True),
    "look-up-naive": Variant(partial(anchored_attention, attention=explicit_attention, look_up="naive"),
                             limited=True, optional=True),
    "look-up": Variant(partial(anchored_attention, look_up="blocks"), equals="look-up-naive", optional=True),
    "softmax": Variant(explicit_self_attention, limited=True, peer=True),
    "sdpa": Variant(fused_attention, equals="softmax", skip_reason=missing_sdpa, peer=True),
}  # fmt: skip


def forward_and_backward(variant: Variant, inputs: Inputs) -> Dict[str, Optional[Tensor]]:
    """Return the "output" of a variant, and the "gradient of NAME" for each differentiable input NAME.

    The gradient of an unused input is None. ``inputs["gradient"]`` is the gradient of the output.
    """
    output, leaves = variant.make(inputs), {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(output, [*leaves.values()], inputs["gradient"], allow_unused=True)
    return {"output": output, **{f"gradient of {name}": x for name, x in zip(leaves, gradients)}}


class AttentionTask(Task):
    """Base class of the benchmarks ``causal`` and ``attention``.

    All implementations are measured in each combination of pass (forward only, or forward and backward),
    length of P, setting in ``kinds`` and sequence length.
    """

    kinds: ClassVar[List[Case]] = [{}]
    options = {
        **number_options(lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64),
        **number_options(projection_length=[16], max_naive_length=None),
        "--dtype": choice_option(*DTYPES, help="data type of the inputs"),
    }

    def cases_at(self, *lengths: int) -> List[Case]:
        """Return the settings with these sequence lengths, for each length of P and each of ``kinds``."""
        packed_lengths = self.args.projection_length
        return [{"l": L, **kind, "T": T} for L in packed_lengths for kind in self.kinds for T in lengths]

    def cases(self) -> List[Case]:
        return [{**case, "pass": which} for case in self.cases_at(*self.args.lengths) for which in PASSES]

    def random_heads(self, **lengths: int) -> Inputs:
        """Create a dictionary of random tensors [B, H, length, K] from the keyword arguments NAME=length.

        The memory layout matches a model's projections. All tensors except "gradient" require a gradient.
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
        """Create random inputs for all implementations, and "gradient", the gradient of the output."""
        raise NotImplementedError

    def longest_naive(self) -> int:
        """Return the maximum sequence length for implementations with quadratic memory."""
        return self.args.max_naive_length or LONGEST_NAIVE[torch.device(self.args.device).type]

    def skip_reason(self, variant: Variant, case: Case) -> str:
        if variant.limited and case["T"] > self.longest_naive():
            return f"lengths beyond --max-naive-length {self.longest_naive()}"
        return super().skip_reason(variant, case)

    def prepare_job(self, variant: Variant, case: Case) -> Job:
        inputs = self.make_inputs(case)
        if case["pass"] == PASSES[0]:
            return partial(torch.no_grad()(variant.make), inputs)
        return partial(forward_and_backward, variant, inputs)

    def check(self, variant: Variant) -> Optional[float]:
        """Return the largest error against a float64 reference, divided by the tolerance.

        Length 7 is checked in addition to ``--lengths``. Beyond ``--max-naive-length``, only the last head of
        the last example is compared. The result is None if no case applies.
        """
        cases = self.cases_at(SMALL_LENGTH, *self.args.lengths) if variant.equals else []
        return max(
            (self.error(variant, case) for case in cases if not self.skip_reason(variant, case)), default=None
        )

    def error(self, variant: Variant, case: Case) -> float:
        """Return the largest error of output and gradients in a setting, divided by the tolerance."""
        inputs, definition = self.make_inputs(case), self.table[variant.equals]
        double_inputs = {}
        is_too_long = definition.limited and case["T"] > self.longest_naive()
        part = slice(-1, None) if is_too_long else slice(None)
        for name, x in inputs.items():
            selected = x[part, part].detach().double() if x.is_floating_point() else x[part]
            double_inputs[name] = selected.requires_grad_(x.requires_grad)
        expected = forward_and_backward(definition, double_inputs)
        actual, errors = forward_and_backward(variant, inputs), []
        for name, right in expected.items():
            if right is not None:
                message = (
                    f"at length {case['T']} its {name} differs from {variant.equals} in {self.args.dtype}"
                )
                result = actual[name]
                result = right * float("nan") if result is None else result[part, part]
                errors.append(require_equal(message, result, right, TOLERANCES[self.args.dtype]))
        return max(errors)


class CausalAttention(AttentionTask):
    """Benchmark ``causal``: Luna's causal attention against softmax attention."""

    notes = """Measure Luna's causal attention beside torch's scaled_dot_product_attention.

    The inputs are projected heads, so that projections are not measured. Luna's pack weights are measured.
    The case "forward" has no gradients, and "forward+backward" computes the gradients of all inputs.

    Rows: cumsum is the definition, a cumulative sum over the outer products of all positions. chunk,
    parallel and triton compute the same result in blocks of positions: block by block, all blocks at once,
    and with a Triton kernel. decay, decay-parallel and decay-triton also forget earlier tokens. sdpa is
    softmax attention of the same inputs, a different function.

    Before anything is timed, outputs and gradients are compared with the definitions in float64."""
    example = "--lengths 512 1024 --tied"
    table = CAUSAL
    options = {
        **AttentionTask.options,
        "--tied": dict(action="store_true", help="use the keys as values, as the model does by default"),
        "--masks": dict(action="store_true", help="mask some positions and some rows of P"),
    }

    def make_inputs(self, case: Case) -> Inputs:
        args, L, T = self.args, case["l"], case["T"]
        x = self.random_heads(pack_q=L, q=T, k=T, pack_k=T, gradient=T, **({} if args.tied else {"v": T}))
        if args.masks:
            is_even, position = torch.arange(args.batch)[:, None] % 2 == 0, torch.arange(T)
            padded = (is_even & (position < T // 3)) | (~is_even & (position >= T - T // 4))
            rows = is_even & (torch.arange(L) >= max(L - 1, 1))
            x.update(rows=rows.to(args.device), positions=padded.to(args.device))
        return x


class PackAndUnpack(AttentionTask):
    """Benchmark ``attention``: Luna's pack and unpack attention against softmax self-attention."""

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
    table = BIDIRECTIONAL
    kinds = [{"padding": "none"}, {"padding": "half"}, {"padding": "mixed"}]

    def make_inputs(self, case: Case) -> Inputs:
        """Create random inputs for :func:`anchored_attention`. Other implementations use a subset."""
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
