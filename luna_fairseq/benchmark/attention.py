"""Benchmarks ``causal`` and ``attention``: Luna's attention variants against softmax attention.

The inputs are queries, keys and values that are already projected and split into heads, so projections are
not measured. Luna packs them into a short sequence P of length L (pack attention). Every query then attends
to P (unpack attention).
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
from luna_fairseq.ops.attention import luna_attention, naive_attention
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights
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
    """Compute Luna's causal attention with one of the library's backends.

    The packed sequence P is a short sequence of L rows, through which queries attend to earlier tokens.
    Shapes: batch size B, heads H, sequence length T, head width K.

    Args:
        x: tensors keyed by name:

            - "q", "k", "v": queries, keys and values, each [B, H, T, K]. Values default to the keys.
            - "pack_q" [B, H, L, K] and "pack_k" [B, H, T, K]: queries and keys of pack attention.
            - "rows" [B, L], optional: True at masked rows of P.
            - "positions" [B, T], optional: True at padding.
        backend: "naive", "chunk" or "triton".
        decay: gradually forget earlier tokens, with the decay rates of a newly initialized model (default:
            False).

    Returns:
        The output [B, H, T, K], zero at padding.
    """
    weights = pack_weights(x["pack_q"], x["pack_k"], "softplus")
    q, heads = x["q"], x["q"].size(1)
    log_decay = -(2 ** (-8 / heads * torch.arange(1, heads + 1, device=q.device))) if decay else None
    inputs = q, x["k"], x.get("v", x["k"]), weights, x.get("rows"), x.get("positions")
    output = causal_luna(*inputs, backend=backend, log_decay=log_decay)
    # The output at padding positions is undefined, so it must not be compared.
    return output.masked_fill(x["positions"][:, None, :, None], 0.0) if "positions" in x else output


def explicit_attention(*inputs: Any) -> Tensor:
    """Compute attention with an explicit weight matrix, as a reference for :func:`luna_attention`.

    Args:
        *inputs: positional arguments of :func:`luna_attention`.

    Returns:
        The output only. (:func:`naive_attention` also returns the weights.)
    """
    return naive_attention(*inputs)[0]


def pack_and_unpack(x: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """Compute Luna's pack and unpack attention, without a causal mask.

    Pack attention summarizes the tokens into the packed sequence P, a short sequence of L rows. Unpack
    attention lets every token attend to P. Shapes: batch size B, heads H, sequence length T, head width K.

    Args:
        x: tensors keyed by name:

            - "q", "k", "v": queries, keys and values, each [B, H, T, K].
            - "pack_q" [B, H, L, K]: queries of pack attention.
            - "mask" [B, T], optional: True at padding.
        attention: attention function with the arguments of :func:`luna_attention` (default: that function).

    Returns:
        The output [B, H, T, K].
    """
    packed = attention(x["pack_q"], x["k"], x["v"], x.get("mask"))
    return attention(x["q"], packed, packed)


def anchored_attention(
    x: Inputs, attention: Callable[..., Tensor] = luna_attention, look_up: str = ""
) -> Tensor:
    """Compute Luna's pack and unpack attention with a bias that prefers nearby tokens.

    Every row of Luna's short packed sequence P has an anchor, a position in the sentence. The bias decreases
    with the distance between the anchor and a token. Shapes: batch size B, heads H, sequence length T, head
    width K, number of rows L.

    Args:
        x: tensors keyed by name, as for :func:`pack_and_unpack`, plus:

            - "strength" [1, H, 1, 1]: scale of the bias per head.
            - "pack" [B, H, L, T] and "unpack" [B, 1, T, L]: distances between anchors and tokens.
            - with ``look_up``: "padding" [B, T], True at padding, "rows" [B, L], True at masked rows of P,
              and the fields of :class:`~luna_fairseq.anchored.segments.Layout`.
        attention: attention function with the arguments of :func:`luna_attention` (default: that function).
        look_up: "" if tokens attend only to P (default). With "blocks", every token also attends to the
            tokens around the anchors of the four rows with its largest weights. "naive" computes the same
            result with the naive implementation.

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


def softmax_attention(x: Inputs) -> Tensor:
    """Compute softmax self-attention with an explicit weight matrix.

    Shapes: batch size B, heads H, sequence length T, head width K.

    Args:
        x: tensors keyed by name:

            - "q", "k", "v": queries, keys and values, each [B, H, T, K].
            - "mask" [B, T], optional: True at padding.

    Returns:
        The output [B, H, T, K].
    """
    logits = x["q"] @ x["k"].transpose(-2, -1) * x["q"].size(-1) ** -0.5
    if "mask" in x:
        logits = logits.masked_fill(x["mask"][:, None, None, :], float("-inf"))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.softmax(dim=-1, dtype=dtype).to(logits.dtype) @ x["v"]


def fused_attention(x: Inputs, is_causal: bool = False) -> Tensor:
    """Compute softmax self-attention with torch's ``scaled_dot_product_attention``.

    Shapes: batch size B, heads H, sequence length T, head width K.

    Args:
        x: tensors keyed by name:

            - "q", "k", "v": queries, keys and values, each [B, H, T, K]. Values default to the keys.
            - "mask" [B, T], optional: True at padding.
        is_causal: mask later positions (default: False).

    Returns:
        The output [B, H, T, K].
    """
    is_token = ~x["mask"][:, None, None, :] if "mask" in x else None
    v = x.get("v", x["k"])
    return F.scaled_dot_product_attention(x["q"], x["k"], v, attn_mask=is_token, is_causal=is_causal)


def missing_sdpa(*unused: Any) -> str:
    """Return the reason torch's fused attention cannot be used, or "" if it can.

    Args:
        *unused: ignored. The benchmark passes its options and the case.

    Returns:
        "", or a clause such as "torch 1.13.1 has no scaled_dot_product_attention".
    """
    is_available = hasattr(F, "scaled_dot_product_attention")
    return "" if is_available else f"torch {torch.__version__} has no scaled_dot_product_attention"


def missing_triton(args: Namespace, case: Case) -> str:
    """Return the reason the Triton kernels cannot run, or "" if they can.

    Args:
        args: parsed command-line options, including ``device``, ``dtype`` and ``head_dim``.
        case: measurement settings. ``case["l"]`` is the length of the packed sequence P.

    Returns:
        "", or a clause such as "the package triton is not installed".
    """
    return why_not_triton(torch.device(args.device), DTYPES[args.dtype], args.head_dim, case["l"])


# Variants of the tasks causal and attention. "cumsum" is the definition of Luna's causal attention: the
# cumulative sum of the outer products of all positions.
CAUSAL = {
    "cumsum": Variant(partial(luna_causal, backend="naive"), limited=True, peer=True),
    "chunk": Variant(partial(luna_causal, backend="chunk"), equals="cumsum"),
    "triton": Variant(partial(luna_causal, backend="triton"), equals="cumsum", skip_reason=missing_triton),
    "decay-naive": Variant(partial(luna_causal, backend="naive", decay=True), limited=True, optional=True),
    "decay": Variant(partial(luna_causal, backend="chunk", decay=True), equals="decay-naive", optional=True),
    "decay-triton": Variant(partial(luna_causal, backend="triton", decay=True), equals="decay-naive",
                        optional=True, skip_reason=missing_triton),
    "sdpa": Variant(partial(fused_attention, is_causal=True), skip_reason=missing_sdpa, peer=True),
}  # fmt: skip
FORMS = {
    "luna-naive": Variant(partial(pack_and_unpack, attention=explicit_attention)),
    "luna": Variant(pack_and_unpack, equals="luna-naive"),
    "anchored-naive": Variant(partial(anchored_attention, attention=explicit_attention), optional=True),
    "anchored": Variant(anchored_attention, equals="anchored-naive", optional=True),
    "look-up-naive": Variant(partial(anchored_attention, attention=explicit_attention, look_up="naive"),
                             limited=True, optional=True),
    "look-up": Variant(partial(anchored_attention, look_up="blocks"), equals="look-up-naive", optional=True),
    "softmax": Variant(softmax_attention, limited=True, peer=True),
    "sdpa": Variant(fused_attention, equals="softmax", skip_reason=missing_sdpa, peer=True),
}  # fmt: skip


def forward_and_backward(variant: Variant, inputs: Inputs) -> Dict[str, Optional[Tensor]]:
    """Run the forward and backward passes of an attention variant.

    Args:
        variant: attention variant to run.
        inputs: input tensors, keyed by name. "gradient" is the gradient of the output.

    Returns:
        Dictionary with the "output", and a "gradient of NAME" for each input NAME that requires a gradient.
        The gradient is None if the attention does not use this input.
    """
    output, leaves = variant.make(inputs), {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(output, [*leaves.values()], inputs["gradient"], allow_unused=True)
    return {"output": output, **{f"gradient of {name}": x for name, x in zip(leaves, gradients)}}


class AttentionTask(Task):
    """Base class of the benchmarks ``causal`` and ``attention``.

    There is one case per pass (forward only, or forward and backward), sequence length, and length of Luna's
    packed sequence P.

    Attributes:
        kinds: settings to combine with all lengths, such as ``[{"padding": "none"}, {"padding": "half"}]``
            (default: a single empty setting).
    """

    kinds: ClassVar[List[Case]] = [{}]
    options = {
        **number_options(lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64),
        **number_options(projection_length=[16], max_naive_length=None),
        "--dtype": choice_option(*DTYPES, help="data type of the inputs"),
    }

    def cases_at(self, *lengths: int) -> List[Case]:
        """Return one case per combination of packed length, other settings and sequence length.

        The cases do not contain "pass", because checks always run both passes.

        Args:
            *lengths: sequence lengths in tokens.

        Returns:
            Cases such as ``{"l": 16, "padding": "none", "T": 512}``: packed length "l", other settings (see
            ``kinds``) and sequence length "T".
        """
        packed_lengths = self.args.projection_length
        return [{"l": L, **kind, "T": T} for L in packed_lengths for kind in self.kinds for T in lengths]

    def cases(self) -> List[Case]:
        """Return all cases to measure, each once for the forward pass and once for both passes.

        Returns:
            Cases such as ``{"l": 16, "T": 512, "pass": "forward"}``.
        """
        return [{**case, "pass": which} for case in self.cases_at(*self.args.lengths) for which in PASSES]

    def random_heads(self, **lengths: int) -> Inputs:
        """Create random tensors that are laid out in memory like the output of a model's projections.

        Args:
            **lengths: length of each tensor, keyed by its name, such as ``q=512``.

        Returns:
            The tensors, keyed by name, each of shape [batch size, heads, length, head width]. All but
            "gradient" require a gradient.
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
        """Create random inputs that all variants share.

        Args:
            case: measurement settings, such as ``{"l": 16, "T": 512}``.

        Returns:
            Input tensors, keyed by name. "gradient" is the gradient of the output.
        """
        raise NotImplementedError

    def longest_naive(self) -> int:
        """Return ``--max-naive-length``, the maximum sequence length for variants with quadratic memory."""
        return self.args.max_naive_length or LONGEST_NAIVE[torch.device(self.args.device).type]

    def skip_reason(self, variant: Variant, case: Case) -> str:
        """Return the reason to skip an attention variant in a case, or "" to measure it.

        Args:
            variant: attention variant to measure.
            case: measurement settings, including the sequence length "T".

        Returns:
            "", or a clause such as "lengths beyond --max-naive-length 1024".
        """
        if variant.limited and case["T"] > self.longest_naive():
            return f"lengths beyond --max-naive-length {self.longest_naive()}"
        return super().skip_reason(variant, case)

    def prepare_job(self, variant: Variant, case: Case) -> Job:
        """Create inputs, and return a function that runs an attention variant once.

        Args:
            variant: attention variant to measure.
            case: measurement settings. "pass" is "forward" (without gradients) or "forward+backward".

        Returns:
            The function to time. It takes no arguments.
        """
        inputs = self.make_inputs(case)
        if case["pass"] == PASSES[0]:
            return partial(torch.no_grad()(variant.make), inputs)
        return partial(forward_and_backward, variant, inputs)

    def check(self, variant: Variant) -> float:
        """Compare an attention variant's output and gradients with those of its float64 reference.

        They are compared at all lengths of the benchmark and at a length of 7. At lengths beyond
        ``--max-naive-length``, only the last head of the last sequence is compared.

        Args:
            variant: attention variant to check. Its attribute ``equals`` names the reference.

        Returns:
            The largest error divided by the tolerance, or 0 if the variant has no reference.

        Raises:
            InputError: An error exceeds the tolerance.
        """
        cases = self.cases_at(SMALL_LENGTH, *self.args.lengths) if variant.equals else []
        return max(
            (self.error(variant, case) for case in cases if not self.skip_reason(variant, case)), default=0.0
        )

    def error(self, variant: Variant, case: Case) -> float:
        """Compute the error of an attention variant relative to its reference in one case.

        Args:
            variant: attention variant to check. Its attribute ``equals`` names the reference.
            case: settings, such as ``{"l": 16, "T": 7}``.

        Returns:
            The largest error of the output and the gradients, divided by the tolerance.

        Raises:
            InputError: An error exceeds the tolerance.
        """
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
    """Benchmark ``causal``: Luna's causal attention against softmax attention.

    The variants are listed in :data:`CAUSAL`.
    """

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
        """Create random inputs for :func:`luna_causal`.

        With ``--tied``, there are no values "v". With ``--masks``, some tokens and some rows of Luna's packed
        sequence P are masked.

        Args:
            case: dictionary with the sequence length "T" and the length "l" of P.

        Returns:
            Input tensors, keyed by name. "gradient" is the gradient of the output.
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
    """Benchmark ``attention``: Luna's pack and unpack attention against softmax self-attention.

    The variants are listed in :data:`FORMS`. None of them is causal.
    """

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
        """Create random inputs for :func:`anchored_attention`. Other variants use a subset of them.

        Args:
            case: dictionary with the sequence length "T", the length "l" of the packed sequence P, and
                "padding" ("none", "half" or "mixed").

        Returns:
            Input tensors, keyed by name. "gradient" is the gradient of the output.
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
