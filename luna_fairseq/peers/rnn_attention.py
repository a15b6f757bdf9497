"""Recurrent translation model with attention, ``--arch rnn_attention``.

At position t, s_t is the state of the decoder, c_t the context from attention to the encoder, and o_t the
output before the projection to the vocabulary. y_t is the embedding of a target token, and f the recurrent
cell.

With ``--attention bahdanau`` (Bahdanau et al., 2015), the previous decoder state is the query, and the
context enters the cell together with the previous token::

    c_t = attention(s_(t-1))
    s_t = f(s_(t-1), [y_(t-1); c_t])
    o_t = tanh(W [s_t; c_t; y_(t-1)])

The paper uses maxout in place of tanh.

With ``--attention luong`` (Luong et al., 2015), the current decoder state is the query, and the context
enters the output only::

    s_t = f(s_(t-1), y_(t-1))
    c_t = attention(s_t)
    o_t = tanh(W [s_t; c_t])

With ``--input-feeding``, ``s_t = f(s_(t-1), [y_(t-1); o_(t-1)])``.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    register_model,
)
from fairseq.models.lstm import Embedding, Linear
from fairseq.modules import FairseqDropout
from luna_fairseq.errors import InputError
from luna_fairseq.models.bases import EncoderDecoder, PluginModel
from luna_fairseq.models.fairseq_layers import IncrementalState
from luna_fairseq.peers.attention import count_left_padding, roll_left
from luna_fairseq.peers.recurrent_attention import RecurrentAttention
from luna_fairseq.peers.rnn_attention_config import RnnAttentionConfig, fill_defaults

# Recurrent cell classes, keyed by name.
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
EncoderOut = Dict[str, List[Tensor]]


@register_model("rnn_attention", dataclass=RnnAttentionConfig)
class RnnAttentionModel(PluginModel, FairseqEncoderDecoderModel):
    """Translation model with a bidirectional recurrent encoder and a recurrent decoder with attention."""

    from_pretrained = EncoderDecoder.from_pretrained

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RnnAttentionModel":
        cfg = fill_defaults(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        embed_tokens = Embedding(len(source), cfg.encoder_embed_dim, source.pad())
        encoder = RnnEncoder(cfg, source, embed_tokens)
        if not cfg.share_all_embeddings:
            embed_tokens = Embedding(len(target), cfg.decoder_embed_dim, target.pad())
        elif source != target:
            raise InputError(
                "--share-all-embeddings needs a joined dictionary of both languages. Preprocess the data "
                "with --joined-dictionary."
            )
        return cls(encoder, RnnAttentionDecoder(cfg, target, embed_tokens))


def build_rnn(cfg: Any, input_dim: int, hidden_dim: int, layers: int, bidirectional: bool = False) -> Any:
    """Build an LSTM or GRU, initialized uniformly in [-0.1, 0.1] like fairseq's LSTM."""
    dropout = cfg.dropout if layers > 1 else 0.0
    rnn = CELLS[cfg.cell](input_dim, hidden_dim, layers, dropout=dropout, bidirectional=bidirectional)
    for parameter in rnn.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1)
    return rnn


class RetainsDropout(nn.Module):
    """Base class whose RNN keeps the dropout between its layers with ``--retain-dropout``."""

    dropout_module: FairseqDropout
    rnn: nn.Module

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.rnn.train(mode or self.dropout_module.apply_during_inference)
        return self


class RnnEncoder(RetainsDropout, FairseqEncoder):
    """Bidirectional LSTM or GRU that encodes the source. Padding may be on either side."""

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=self.__class__.__name__)
        hidden, layers = cfg.encoder_hidden_size, cfg.encoder_layers
        self.rnn = build_rnn(cfg, embed_tokens.embedding_dim, hidden, layers, bidirectional=True)
        self.longest = cfg.max_source_positions

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **kwargs: Any) -> EncoderOut:
        """Encode source tokens [B, S], and return a dictionary of lists.

        ``encoder_out`` holds the states [S, B, 2 H] for a hidden width H. ``final`` holds the last hidden
        states of all layers, [B, layers, 2 H], and the last cell states of an LSTM.
        """
        padding_mask = src_tokens.eq(self.embed_tokens.padding_idx)
        left = count_left_padding(padding_mask)
        x = self.dropout_module(self.embed_tokens(roll_left(src_tokens, left)))
        lengths = (~padding_mask).sum(dim=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed, state = self.rnn(packed)
        x, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=src_tokens.size(1))
        final = [part.unflatten(0, (-1, 2)).permute(2, 0, 1, 3).flatten(2) for part in state_tensors(state)]
        x = self.dropout_module(roll_left(x, -left))
        return {"encoder_out": [x.transpose(0, 1)], "encoder_padding_mask": [padding_mask], "final": final}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Return the encoder outputs for beam search. Entry i is the output of sentence ``new_order[i]``."""
        return {
            name: [x.index_select(1 if name == "encoder_out" else 0, new_order) for x in values]
            for name, values in encoder_out.items()
        }

    def max_positions(self) -> int:
        return self.longest


def state_tensors(state: Any) -> Tuple[Tensor, ...]:
    """Return a recurrent state of torch as a tuple: (hidden, cell) for an LSTM, (hidden,) for a GRU."""
    return state if isinstance(state, tuple) else (state,)


class RnnAttentionDecoder(RetainsDropout, FairseqIncrementalDecoder):
    """LSTM or GRU decoder with attention to the source.

    The first hidden state of a layer is tanh(W h), and the first cell state of an LSTM is W' c, where h and c
    are the last states of the same layer of the encoder.

    The decoding state holds tensors [B, ...]: the ``keys`` of attention, the hidden states ``state0`` of all
    layers, their cell states ``state1`` (LSTM only) and the previous output ``fed`` (input feeding only).
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=self.__class__.__name__)
        self.is_bahdanau = cfg.attention == "bahdanau"
        self.input_feeding = cfg.input_feeding
        self.longest = cfg.max_target_positions
        memory, hidden = 2 * cfg.encoder_hidden_size, cfg.decoder_hidden_size
        embed, output = embed_tokens.embedding_dim, cfg.decoder_out_embed_dim
        self.output_dim = output
        self.encoder_attn = RecurrentAttention(
            cfg.score, hidden, memory, cfg.local, cfg.local_window, cfg.max_source_positions
        )
        fed_dim = 0  # width of the cell input in addition to the token
        if self.is_bahdanau:
            fed_dim = memory
        elif self.input_feeding:
            fed_dim = output
        self.rnn = build_rnn(cfg, embed + fed_dim, hidden, cfg.decoder_layers)
        num_tensors = 2 if cfg.cell == "lstm" else 1
        self.bridge = nn.ModuleList(Linear(memory, hidden) for _ in range(num_tensors))
        self.readout = Linear(hidden + memory + (embed if self.is_bahdanau else 0), output)
        shared = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
        self.output_projection = Linear(output, len(dictionary), bias=not shared)
        if shared:
            self.output_projection.weight = embed_tokens.weight

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, List[Tensor]]]:
        """Compute logits for T target tokens, and {"attn": [attention weights [B, T, S] over the source]}.

        ``features_only`` omits the output projection. With ``incremental_state``, T is 1 (the last token).
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: Optional[IncrementalState] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, List[Tensor]]]:
        """Compute the features [B, T, width] before the output projection, and {"attn": [weights]}."""
        if incremental_state is None:
            left = count_left_padding(prev_output_tokens.eq(self.embed_tokens.padding_idx))
            tokens, first = roll_left(prev_output_tokens, left), 0
        else:
            tokens, first = prev_output_tokens[:, -1:], prev_output_tokens.size(1) - 1
        x = self.dropout_module(self.embed_tokens(tokens))
        saved = self.get_incremental_state(incremental_state, "recurrent")
        state = self._initial_state(encoder_out) if saved is None else saved
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        (padding_mask,) = encoder_out["encoder_padding_mask"]

        def attend(query: Tensor, position: int) -> Tuple[Tensor, Tensor]:
            return self.encoder_attn(query, memory, state["keys"], padding_mask, position)

        # If the context enters the states, the tokens are decoded one by one.
        size = 1 if self.is_bahdanau or self.input_feeding else x.size(1)
        steps = [self._step(part, state, attend, first + t) for t, part in enumerate(x.split(size, dim=1))]
        features, weights = (torch.cat(parts, dim=1) for parts in zip(*steps))
        if incremental_state is None:
            return roll_left(features, -left), {"attn": [roll_left(weights, -left)]}
        self.set_incremental_state(incremental_state, "recurrent", state)
        return features, {"attn": [weights]}

    def _initial_state(self, encoder_out: EncoderOut) -> Dict[str, Tensor]:
        """Return the decoding state before the first token, computed from the last encoder states."""
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        state = {"keys": self.encoder_attn.compute_keys(memory)}
        for i, (final, linear) in enumerate(zip(encoder_out["final"], self.bridge)):
            state[f"state{i}"] = linear(final) if i else torch.tanh(linear(final))
        if self.input_feeding:
            state["fed"] = memory.new_zeros(memory.size(0), 1, self.output_dim)
        return state

    def _run_rnn(self, x: Tensor, state: Dict[str, Tensor]) -> Tensor:
        """Return the recurrent layers' outputs for inputs [B, T, width], and update ``state`` in place."""
        before = [state[f"state{i}"].transpose(0, 1).contiguous() for i in range(len(self.bridge))]
        states, after = self.rnn(x.transpose(0, 1), tuple(before) if len(before) > 1 else before[0])
        for i, part in enumerate(state_tensors(after)):
            state[f"state{i}"] = part.transpose(0, 1)
        return states.transpose(0, 1)

    def _step(self, x: Tensor, state: Dict[str, Tensor], attend: Any, position: int) -> Tuple[Tensor, Tensor]:
        """Return the features before the output projection, and the attention weights, for T positions.

        x [B, T, width] holds the embeddings of the positions, and ``position`` is the index of the first
        position. ``attend`` is a function ``(queries, position of the first query) -> (contexts,
        weights)``. ``state`` is updated in place. T must be 1 if the context enters the recurrent cell.
        """
        if self.is_bahdanau:
            context, weights = attend(state["state0"][:, -1:], position)
            readout_input = [self._run_rnn(torch.cat([x, context], dim=-1), state), context, x]
        else:
            states = self._run_rnn(torch.cat([x, state["fed"]], dim=-1) if self.input_feeding else x, state)
            context, weights = attend(states, position)
            readout_input = [states, context]
        features = self.dropout_module(torch.tanh(self.readout(torch.cat(readout_input, dim=-1))))
        if self.input_feeding:
            state["fed"] = features
        return features, weights

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        return self.output_projection(features)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the decoding state for beam search: hypothesis i continues hypothesis ``new_order[i]``."""
        state = self.get_incremental_state(incremental_state, "recurrent")
        if state is not None:
            moved = {name: part.index_select(0, new_order) for name, part in state.items()}
            self.set_incremental_state(incremental_state, "recurrent", moved)

    def max_positions(self) -> int:
        return self.longest
