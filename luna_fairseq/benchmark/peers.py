"""The tables: every row that the benchmark knows, by name, and how it is built.

To add one, see the package's docstring. A row that can be compared with a definition must be: nothing is
timed that computes something else than it should. In all tables ``peer`` adds a column, the speed of every
row as a multiple of this one's, and ``optional`` leaves the row out unless ``--with`` asks for it.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from luna_fairseq.benchmark import causal, pack_and_unpack
from luna_fairseq.benchmark.attentions import (
    use_definitions,
    use_fused_attention,
    use_written_out_attention,
)
from luna_fairseq.benchmark.fused_softmax import why_no_kernel, why_no_sdpa
from luna_fairseq.benchmark.heads import Shape
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.optim.apollo import Apollo
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.attention import FORMS


@dataclass(frozen=True)
class Form:
    """A way of computing an attention on projected heads.

    Attributes:
        compute: inputs, as ``causal.py`` or ``pack_and_unpack.py`` makes them -> output [B, H, T, K]
        equals: row whose output and gradients it must have
        limited: keeps a matrix for every position, and so ends at ``--max-naive-length``
        why_not: why it does not run with such a shape on the device of the settings (default: it does)
        peer, optional: see the module
    """

    compute: Callable[[Any], Tensor]
    equals: Optional[str] = None
    limited: bool = False
    why_not: Optional[Callable[[Shape, Settings], str]] = None
    peer: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """A whole model.

    Attributes:
        architectures: fairseq's name of it in each task where it is a row
        options: what its command line has besides sizes
        attention: last change to the built model
        definition: makes of this row the one whose loss and gradients it must have (default: it is one)
        needs_sdpa: runs with torch's scaled_dot_product_attention alone
        peer, optional: see the module
    """

    architectures: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    attention: Optional[Callable[[nn.Module], None]] = None
    definition: Optional[Callable[["Model"], "Model"]] = None
    needs_sdpa: bool = False
    peer: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Optimizer:
    """An optimizer.

    Attributes:
        make: parameters, ``lr`` -> the optimizer
        equals: row that must change parameters as it does
        peer, optional: see the module
    """

    make: Callable[..., torch.optim.Optimizer]
    equals: Optional[str] = None
    peer: bool = False
    optional: bool = False


KERNELS = {"sdpa-flash": "FLASH_ATTENTION", "sdpa-efficient": "EFFICIENT_ATTENTION", "sdpa-math": "MATH"}
# Writes the T x T weights out.
QUADRATIC = "sdpa-math"

# luna_fairseq.benchmark causal
CAUSAL: Dict[str, Form] = {
    # The definition, which is also the cumulative sum of the outer products of all positions.
    "cumsum": Form(partial(causal.backend, name="naive"), limited=True, peer=True),
    "loop": Form(causal.loop, equals="cumsum", limited=True, peer=True),
    "chunk": Form(partial(causal.backend, name="chunk"), equals="cumsum"),
    "decay-naive": Form(partial(causal.backend, name="naive", decay=True), limited=True, optional=True),
    "decay": Form(partial(causal.backend, name="chunk", decay=True), equals="decay-naive", optional=True),
    "triton": Form(partial(causal.backend, name="triton"), equals="cumsum", why_not=causal.why_no_triton),
    "decay-triton": Form(
        partial(causal.backend, name="triton", decay=True),
        equals="decay-naive",
        why_not=causal.why_no_triton,
        optional=True,
    ),
    "fla": Form(causal.flash_linear_attention, equals="cumsum", why_not=causal.why_no_fla, peer=True),
    "sdpa": Form(causal.softmax, why_not=why_no_sdpa, peer=True),
    **{
        name: Form(
            partial(causal.softmax, kernel=kernel),
            limited=name == QUADRATIC,
            why_not=partial(why_no_kernel, kernel=kernel, is_causal=True),
            peer=True,
        )
        for name, kernel in KERNELS.items()
    },
}

# luna_fairseq.benchmark attention
PACK_AND_UNPACK: Dict[str, Form] = {
    "luna-naive": Form(partial(pack_and_unpack.pack_and_unpack, attention=pack_and_unpack.naive)),
    "luna": Form(pack_and_unpack.pack_and_unpack, equals="luna-naive"),
    "anchored-naive": Form(partial(pack_and_unpack.anchored, attention=pack_and_unpack.naive), optional=True),
    "anchored": Form(pack_and_unpack.anchored, equals="anchored-naive", optional=True),
    "look-up-naive": Form(pack_and_unpack.naive_look_up, limited=True, optional=True),
    "look-up": Form(pack_and_unpack.look_up, equals="look-up-naive", optional=True),
    "local-naive": Form(pack_and_unpack.naive_local, limited=True, optional=True),
    "local": Form(pack_and_unpack.local, equals="local-naive", optional=True),
    "softmax": Form(pack_and_unpack.softmax, limited=True, peer=True),
    "sdpa": Form(pack_and_unpack.fused, equals="softmax", why_not=why_no_sdpa, peer=True),
    **{
        name: Form(
            partial(pack_and_unpack.fused, kernel=kernel),
            equals="softmax",
            limited=name == QUADRATIC,
            why_not=partial(why_no_kernel, kernel=kernel),
            peer=True,
        )
        for name, kernel in KERNELS.items()
    },
}


def plain(row: Model) -> Model:
    """The same model with its own attention."""
    return replace(row, attention=None)


def written_out(row: Model) -> Model:
    """The same Luna by its definition."""
    options = {**row.options, "luna_backend": "naive", "torch_compile": False}
    return replace(row, options=options, attention=use_written_out_attention)


def fused(**architectures: str) -> Model:
    """The model on scaled_dot_product_attention."""
    return Model(architectures, attention=use_fused_attention, definition=plain, needs_sdpa=True, peer=True)


def weights_written_out(**architectures: str) -> Model:
    """The model with attention weights written out."""
    return Model(architectures, attention=use_written_out_attention, definition=plain, peer=True)


def luna(untied: bool, **architectures: str) -> Model:
    """Luna, with l rows of P."""
    options = {"projection_length": "{l}", "encoder_projection_length": "{l}", "untie_luna_kv": untied}
    return Model(architectures, options, definition=written_out)


def anchored(**options: Any) -> Model:
    """Anchored Luna in translation, tied, with these options besides."""
    row = luna(untied=False, translate="luna_anchored", decode="luna_anchored")
    return replace(row, options={**row.options, **options}, optional=True)


def compiled(**architectures: str) -> Model:
    """Luna, tied, its layers run through torch.compile, as --torch-compile does in training."""
    row = luna(untied=False, **architectures)
    return replace(row, options={**row.options, "torch_compile": True}, optional=True)


def peer(attention: str, **options: Any) -> Model:
    """The Transformer with that attention, and options of it; an encoder-decoder where it has every form."""
    architectures = {"classify": "peer_lra_imdb", "masked_lm": "peer_roberta"}
    if set(FORMS) <= set(ATTENTIONS[attention].forms):
        architectures.update(translate="peer_transformer", decode="peer_transformer")
    options = {"attention": attention, **options}
    return Model(architectures, options, definition=by_definition, optional=True)


def by_definition(row: Model) -> Model:
    """The same peer with whole matrices of weights."""
    return replace(row, attention=use_definitions)


# luna_fairseq.benchmark train, lra and decode; sorted within a task as they stand here.
MODELS: Dict[str, Model] = {
    "transformer": Model({"translate": "transformer", "decode": "transformer"}, peer=True),
    "transformer-softmax": weights_written_out(classify="transformer_lra_imdb"),
    "transformer-sdpa": fused(translate="transformer", classify="transformer_lra_imdb"),
    "roberta-softmax": weights_written_out(masked_lm="roberta"),
    "roberta-sdpa": fused(masked_lm="roberta"),
    "luna-{l}-tied": luna(untied=False, translate="luna", decode="luna", masked_lm="luna_masked_lm"),
    "luna-{l}-untied": luna(untied=True, translate="luna", decode="luna", masked_lm="luna_masked_lm"),
    "luna-{l}-anchored": luna(
        untied=False, translate="luna_anchored", decode="luna_anchored", masked_lm="luna_anchored_base_512"
    ),
    "luna-{l}-no-look-up": anchored(packed_lookup=0),
    "luna-{l}-softmax-cross": anchored(packed_lookup=0, cross_attention="softmax"),
    "luna-{l}-compiled": compiled(translate="luna", masked_lm="luna_masked_lm"),
    "luna-{l}": luna(untied=True, classify="luna_lra_imdb"),
    **{f"peer-{name}": peer(name) for name in ATTENTIONS},
    "peer-softmax-alibi": peer("softmax", alibi=True),
}


def models_of(task: str, projection_lengths: Sequence[int]) -> Dict[str, Model]:
    """The rows of a task; those with ``{l}`` in their name once for each length."""
    rows: Dict[str, Model] = {}
    here = {name: row for name, row in MODELS.items() if task in row.architectures}
    rows.update((name, row) for name, row in here.items() if "{l}" not in name)
    for length in projection_lengths:
        for name, row in here.items():
            if "{l}" in name:
                options = {k: length if value == "{l}" else value for k, value in row.options.items()}
                rows[name.replace("{l}", str(length))] = replace(row, options=options)
    return rows


# luna_fairseq.benchmark apollo
OPTIMIZERS: Dict[str, Optimizer] = {
    "adamw": Optimizer(partial(torch.optim.AdamW, foreach=False), peer=True),
    "adamw-foreach": Optimizer(partial(torch.optim.AdamW, foreach=True), equals="adamw", peer=True),
    "adamw-fused": Optimizer(partial(torch.optim.AdamW, fused=True), equals="adamw", peer=True),
    "apollo-single": Optimizer(partial(Apollo, foreach=False)),
    "apollo-foreach": Optimizer(partial(Apollo, foreach=True), equals="apollo-single"),
    "apollo": Optimizer(Apollo, equals="apollo-single"),
}
