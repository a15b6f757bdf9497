"""Forms of causal Luna attention: whole sequences, pack weights, and the next positions after a state."""

from torch import Tensor, nn

from luna_fairseq.ops.absorbed import should_absorb
from luna_fairseq.ops.causal_luna.choice import prefers_parallel, prefers_triton, supports_triton
from luna_fairseq.ops.forms import Form, FormTable, never, otherwise
from luna_fairseq.ops.plain_linear import linear_parameters

CAUSAL_FORMS = FormTable(
    "causal attention",
    Form(
        "triton",
        "ops/causal_luna/triton.py",
        "a GPU of FASTER_WITH_TRITON (none yet), supported sizes, no graph",
        "memory: T x (K + L) in place of T x L; not measured on a GPU",
        prefers_triton,
        supports_triton,
    ),
    Form(
        "parallel",
        "ops/causal_luna/parallel.py",
        "a GPU, no graph",
        "the loop over chunks, 26 ms for 4,096 positions on an H200, in batched products",
        prefers_parallel,
    ),
    Form(
        "chunk",
        "ops/causal_luna/chunk.py",
        "otherwise",
        "memory: T x L in place of T x K x L, in matrix products",
        otherwise,
    ),
    Form("naive", "ops/causal_luna/naive.py", "if forced", "the definition", never),
)


def _can_absorb(pack_q: Tensor, x: Tensor, key_projection: nn.Module) -> bool:
    return pack_q.size(0) == x.size(1) and linear_parameters(key_projection) is not None


def _should_absorb(pack_q: Tensor, x: Tensor, key_projection: nn.Module) -> bool:
    # One P for each example: hypotheses that share a P are decoded step by step.
    return pack_q.size(0) == x.size(1) and should_absorb(pack_q, x, key_projection, products=1)


PACK_WEIGHT_FORMS = FormTable(
    "pack weights of causal attention",
    Form(
        "absorbed",
        "ops/absorbed.py",
        "should_absorb: a CPU, no graph, long targets, plain linear layers",
        "the projection of the keys, one of three or four of X",
        _should_absorb,
        _can_absorb,
    ),
    Form("projected", "ops/causal_luna/inputs.py", "otherwise", "keys are projected first", otherwise),
)

STEP_FORMS = FormTable(
    "causal attention after a state",
    Form(
        "recurrent",
        "ops/causal_luna/recurrent.py",
        "one new position",
        "all products within a chunk: the output is read from the new sums",
        lambda q: q.size(2) == 1,
        lambda q: q.size(2) == 1,
    ),
    Form(
        "chunk",
        "ops/causal_luna/chunk.py",
        "several new positions (a prefix)",
        "calls: one for all positions",
        otherwise,
    ),
)
