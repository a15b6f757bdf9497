"""The size of a model, from the options that it is trained with: its parameters, and the work of a step."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Dict, Optional

from luna_fairseq.costs.attention import ITEMSIZE, Heads, causal_luna, pack_and_unpack, softmax
from luna_fairseq.costs.roofline import Work
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.models.luna_masked_lm_config import LunaMaskedLMConfig

CHUNK = 32
BACKWARD = 2  # a product has two in the backward pass
# Numbers that go to memory or come from it for a token, forward and backward: of a layer's width for residual
# streams, norms and dropout, and for each projection; of the feed-forward width.
ELEMENTWISE, OF_PROJECTION, OF_FFN = 50, 8, 20


@dataclass(frozen=True)
class Stack:
    """Layers of an encoder or a decoder."""

    layers: int
    width: int
    ffn: int
    heads: int


@dataclass(frozen=True)
class Model:
    """What counts for cost.

    Attributes:
        encoder, decoder: the stacks; no decoder in a masked language model
        dictionary: its entries, of source and target alike
        embeddings: tables of tokens, that of the output counted where it is one of its own
        positions: learned ones
        luna: attention goes through P; else softmax attention
        projection_length: l
        untied: keys and values of Luna attention have projections of their own
        softmax_cross: attention to the source is softmax attention
        contextual: layers hand the packed sequence on
        anchored: P's rows have places
        decay: causal attention forgets
        diagonal: attention to the source is drawn to the diagonal
        local_parts: parts around a token whose tokens it reads in the encoder
        lookup: parts whose tokens attention to the source reads
        checkpoint: activations of a layer are computed again in the backward pass
    """

    encoder: Stack
    decoder: Optional[Stack]
    dictionary: int
    embeddings: int
    positions: int
    luna: bool
    projection_length: int = 0
    untied: bool = False
    softmax_cross: bool = False
    contextual: bool = True
    anchored: bool = False
    decay: bool = False
    diagonal: bool = False
    local_parts: int = 0
    lookup: int = 0
    checkpoint: bool = False


KINDS = {"luna": True, "transformer": False, "luna_masked_lm": True, "roberta": False}


def model_of(args: Namespace, kind: str, dictionary: int) -> Model:
    """The model that options of fairseq-train build.

    Args:
        args: with the architecture's own, as fairseq parses them
        kind: the registered model of ``--arch``
        dictionary: entries, special symbols included

    Raises:
        InputError: a model whose costs are not counted here
    """
    if kind not in KINDS:
        raise InputError(f"the model {kind} is not counted; those counted are {', '.join(KINDS)}")
    defaults = {"luna": LunaConfig(), "luna_masked_lm": LunaMaskedLMConfig()}.get(kind)
    if defaults is not None:
        args = Namespace(**flat_options(args, defaults))
    common: Dict[str, Any] = {
        "dictionary": dictionary,
        "luna": KINDS[kind],
        "checkpoint": getattr(args, "checkpoint_activations", False),
    }
    if KINDS[kind]:
        common.update(
            projection_length=args.projection_length,
            untied=args.untie_luna_kv,
            anchored=args.anchored_packed,
            decay=getattr(args, "causal_decay", False),
            diagonal=getattr(args, "diagonal_prior", False),
            local_parts=args.local_parts,
            lookup=getattr(args, "packed_lookup", 0),
            contextual=not getattr(args, "non_contextual_packed", False),
            softmax_cross=str(getattr(args, "cross_attention", "luna")) == "softmax",
        )
    encoder = Stack(
        args.encoder_layers, args.encoder_embed_dim, args.encoder_ffn_embed_dim, args.encoder_attention_heads
    )
    if kind in ("luna_masked_lm", "roberta"):
        return Model(encoder, None, embeddings=1, positions=args.max_positions + 2, **common)
    decoder = Stack(
        args.decoder_layers,
        encoder.width,
        args.decoder_ffn_embed_dim or encoder.ffn,
        args.decoder_attention_heads,
    )
    shared = 1 if args.share_all_embeddings else 2 if args.share_decoder_input_output_embed else 3
    return Model(encoder, decoder, embeddings=shared, positions=0, **common)


def parameters(model: Model) -> int:
    """How many a model has."""
    width = model.encoder.width
    total = model.embeddings * model.dictionary * width + model.positions * width
    total += model.projection_length * width
    masked = model.decoder is None
    total += model.encoder.layers * _layer(model, model.encoder, decoder=False)
    if masked:
        # Its embedding's norm, and the head: a layer, a norm, a bias for each entry.
        total += 2 * width + width * width + 3 * width + model.dictionary
    if model.decoder is not None:
        total += model.decoder.layers * _layer(model, model.decoder, decoder=True)
        if model.luna and model.contextual:  # nothing reads the last P
            total -= _packing(model, model.decoder) if model.softmax_cross else 2 * width
    return total


def _layer(model: Model, stack: Stack, decoder: bool) -> int:
    linear, norm = stack.width * (stack.width + 1), 2 * stack.width
    feed_forward = 2 * stack.width * stack.ffn + stack.ffn + stack.width
    if not model.luna:
        return feed_forward + (8 * linear + 3 * norm if decoder else 4 * linear + 2 * norm)
    attention, causal = (7, 6) if model.untied else (5, 5)
    anchors = stack.heads if model.anchored else 0
    packed_norm = norm if model.contextual else 0
    if not decoder:
        attention += _of_tokens(model, model.local_parts)
        return feed_forward + attention * linear + 2 * norm + packed_norm + 2 * anchors
    layer = feed_forward + causal * linear + 3 * norm + (2 * model.diagonal + model.decay) * stack.heads
    if model.softmax_cross:
        return layer + 4 * linear + (_packing(model, stack) if model.contextual else 0)
    if model.lookup:
        layer += _of_tokens(model, model.lookup) * linear + stack.heads  # with the gates
    return layer + attention * linear + packed_norm + anchors


def _packing(model: Model, stack: Stack) -> int:
    """Of pack attention beside softmax attention to the source, with the norm of P."""
    linear = stack.width * (stack.width + 1)
    return (3 if model.untied else 2) * linear + 2 * stack.width + (stack.heads if model.anchored else 0)


@dataclass(frozen=True)
class Batch:
    """Sentences of a length, source and target alike; ``predicted``: part of the tokens that are."""

    sentences: float
    length: int
    predicted: float = 1.0

    @property
    def tokens(self) -> float:
        """Of the target."""
        return self.sentences * self.length


def step_work(model: Model, batch: Batch, dtype: str) -> Dict[str, Work]:
    """Work of a forward and backward pass, by part: ``layers``, ``attention`` and ``output``."""
    layers = stack_work(model, model.encoder, batch, dtype, decoder=False)
    if model.decoder is not None:
        more = stack_work(model, model.decoder, batch, dtype, decoder=True)
        layers = {part: layers[part] + more[part] for part in layers}
    item, width = ITEMSIZE[dtype], model.encoder.width
    logits = batch.tokens * batch.predicted * model.dictionary
    flops = (1 + BACKWARD) * 2 * logits * width
    # Logits, their logarithms in float32, and the gradients of both.
    return {**layers, "output": Work({dtype: flops}, logits * (3 * item + 5 * 4))}


def stack_work(model: Model, stack: Stack, batch: Batch, dtype: str, decoder: bool) -> Dict[str, Work]:
    """Of one stack's products and element-wise operations, and of its attention."""
    item, width, passes = ITEMSIZE[dtype], stack.width, 1 + BACKWARD + (1 if model.checkpoint else 0)
    on_tokens, on_packed = projections(model, decoder)
    rows = batch.sentences * min(model.projection_length, batch.length)
    square = 2.0 * width * width
    of_token = 2 * 2.0 * width * stack.ffn + on_tokens * square
    flops = passes * (batch.tokens * of_token + rows * on_packed * square)
    weights = item * (2 * width * stack.ffn + (on_tokens + on_packed) * width * width) * passes
    moved = (
        item * batch.tokens * ((ELEMENTWISE + OF_PROJECTION * on_tokens) * width + OF_FFN * stack.ffn)
        + item * rows * OF_PROJECTION * on_packed * width
    )
    layers = Work({dtype: flops}, weights + moved) * stack.layers
    heads = Heads(
        1,
        batch.length,
        width // stack.heads,
        min(model.projection_length, batch.length),
        dtype,
        not model.untied,
    )
    if not model.luna:
        attention = softmax(heads, True, causal=decoder)
        if decoder:
            attention = attention + softmax(heads, True, causal=False)
    else:
        parts = 0 if decoder else model.local_parts
        attention = causal_luna(heads, True, CHUNK) if decoder else pack_and_unpack(heads, True, parts)
        if decoder:
            through_packed = pack_and_unpack(heads, True, model.lookup)
            cross = softmax(heads, True, False) if model.softmax_cross else through_packed
            attention = attention + cross
    return {"layers": layers, "attention": attention * (batch.sentences * stack.heads * stack.layers)}


def projections(model: Model, decoder: bool) -> Any:
    """How many maps of a layer's attentions read tokens, and how many P."""
    if not model.luna:
        return (8, 0) if decoder else (4, 0)
    of_keys = 2 if model.untied else 1
    on_tokens, on_packed = 2 + of_keys, 1 + of_keys
    if not decoder:
        return on_tokens + _of_tokens(model, model.local_parts), on_packed
    if model.softmax_cross:
        return 3 + of_keys + 4 + of_keys, 2  # the last layer packs no P, and is counted as the others
    return 3 + of_keys + on_tokens + _of_tokens(model, model.lookup), 1 + on_packed


def _of_tokens(model: Model, parts: int) -> int:
    """How many projections tokens have that are read by ``parts``."""
    return 2 if parts else 0
