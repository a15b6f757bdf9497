"""Recurrent sequence-to-sequence with attention: ``--arch rnn_attention --attention bahdanau | luong``.

*Bahdanau* (2015): the previous state of the decoder asks, and what it reads enters the cell with the token
before: ``c_t = attention(s_{t-1})``, ``s_t = f(s_{t-1}, [y_{t-1}; c_t])``. The output is
tanh(W [s_t; c_t; y_{t-1}]) (a tanh where the paper has a maxout).
*Luong* (2015): the current state asks, and what it reads goes to the output alone: ``s_t = f(s_{t-1},
y_{t-1})``, ``c_t = attention(s_t)``, output ``o_t = tanh(W [s_t; c_t])``; with input feeding ``s_t =
f(s_{t-1}, [y_{t-1}; o_{t-1}])``.
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
from luna_fairseq.models.bases import LoadsWhatFits
from luna_fairseq.models.fairseq_layers import IncrementalState
from luna_fairseq.peers.attention import count_left_padding, roll_left
from luna_fairseq.peers.recurrent_attention import RecurrentAttention
from luna_fairseq.peers.rnn_attention_config import RnnAttentionConfig, fill_defaults

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
EncoderOut = Dict[str, List[Tensor]]


@register_model("rnn_attention", dataclass=RnnAttentionConfig)
class RnnAttentionModel(LoadsWhatFits, FairseqEncoderDecoderModel):
    """A bidirectional recurrent encoder, and a recurrent decoder that attends to it."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RnnAttentionModel":
        """Build the model for the dictionaries of ``task``.

        Raises:
            InputError: options that do not go together, or dictionaries that cannot share an embedding
        """
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
    """Layers of the cell that ``cfg`` names, with weights as fairseq's LSTM begins with."""
    dropout = cfg.dropout if layers > 1 else 0.0
    rnn = CELLS[cfg.cell](input_dim, hidden_dim, layers, dropout=dropout, bidirectional=bidirectional)
    for parameter in rnn.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1)
    return rnn


class RnnEncoder(FairseqEncoder):
    """Bidirectional LSTM or GRU. A sentence is read from its first real token to its last on whichever side
    the padding is.

    Args:
        cfg: a :class:`RnnAttentionConfig`
        dictionary: source dictionary
        embed_tokens: token embedding
    """

    def __init__(self, cfg: Any, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=self.__class__.__name__)
        hidden, layers = cfg.encoder_hidden_size, cfg.encoder_layers
        self.rnn = build_rnn(cfg, embed_tokens.embedding_dim, hidden, layers, bidirectional=True)
        self.longest = cfg.max_source_positions

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **kwargs: Any) -> EncoderOut:
        """
        Args:
            src_tokens: [B, S], padded on either side
            src_lengths: not needed: lengths are counted from ``src_tokens``

        Returns:
            ``encoder_out`` [S, B, 2 H], ``encoder_padding_mask`` [B, S], both in the places of
            ``src_tokens``; ``final`` [B, layers, 2 H]: the last state of each layer, of an LSTM two (of
            hidden units, of cells)
        """
        padding_mask = src_tokens.eq(self.embed_tokens.padding_idx)
        left = count_left_padding(padding_mask)
        x = self.dropout_module(self.embed_tokens(roll_left(src_tokens, left)))
        lengths = (~padding_mask).sum(dim=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed, state = self.rnn(packed)
        x, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=src_tokens.size(1))
        final = [each.unflatten(0, (-1, 2)).permute(2, 0, 1, 3).flatten(2) for each in state_tensors(state)]
        x = self.dropout_module(roll_left(x, -left))
        return {"encoder_out": [x.transpose(0, 1)], "encoder_padding_mask": [padding_mask], "final": final}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """``encoder_out`` with row ``new_order[i]`` at place i [B']."""
        return {
            name: [x.index_select(1 if name == "encoder_out" else 0, new_order) for x in values]
            for name, values in encoder_out.items()
        }

    def max_positions(self) -> int:
        """Longest source."""
        return self.longest


def state_tensors(state: Any) -> Tuple[Tensor, ...]:
    """The tensors of a recurrent state: two of an LSTM, one of a GRU."""
    return state if isinstance(state, tuple) else (state,)


class RnnAttentionDecoder(FairseqIncrementalDecoder):
    """LSTM or GRU that attends to the source. Every layer begins with the last state of the encoder's layer
    beside it: tanh(W h) for hidden units, W c for an LSTM's cells.

    Args:
        cfg: a :class:`RnnAttentionConfig` as :func:`fill_defaults` returns it
        dictionary: target dictionary
        embed_tokens: token embedding
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
        self.encoder_attn = RecurrentAttention(
            cfg.score, hidden, memory, cfg.local, cfg.local_window, cfg.max_source_positions
        )
        fed_dim = memory if self.is_bahdanau else output if self.input_feeding else 0
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
        """
        Args:
            prev_output_tokens: [B, T], padded on either side; with ``incremental_state`` all so far, the
                last of which is read
            encoder_out: what :class:`RnnEncoder` returns
            incremental_state: fairseq's store for decoding
            features_only: return features instead of scores of words

        Returns:
            scores [B, T, V], or features [B, T, output]; ``attn`` [weights [B, T, S]]
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
        """As :meth:`forward` with ``features_only``."""
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

        def attend(query: Tensor, place: int) -> Tuple[Tensor, Tensor]:
            return self.encoder_attn(query, memory, state["keys"], padding_mask, place)

        # One token after the other where what is read of the source goes into the states.
        size = 1 if self.is_bahdanau or self.input_feeding else x.size(1)
        steps = [self._step(part, state, attend, first + t) for t, part in enumerate(x.split(size, dim=1))]
        features, weights = (torch.cat(each, dim=1) for each in zip(*steps))
        if incremental_state is None:
            return roll_left(features, -left), {"attn": [roll_left(weights, -left)]}
        self.set_incremental_state(incremental_state, "recurrent", state)
        return features, {"attn": [weights]}

    def _initial_state(self, encoder_out: EncoderOut) -> Dict[str, Tensor]:
        """Before the first token, each part [B, ..]: what attention needs, layers' states, last output."""
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        state = {"keys": self.encoder_attn.compute_keys(memory)}
        for i, (final, linear) in enumerate(zip(encoder_out["final"], self.bridge)):
            state[f"state{i}"] = linear(final) if i else torch.tanh(linear(final))
        if self.input_feeding:
            state["fed"] = memory.new_zeros(memory.size(0), 1, self.readout.out_features)
        return state

    def _run_rnn(self, x: Tensor, state: Dict[str, Tensor]) -> Tensor:
        """The states [B, T, hidden] of the upper layer after reading x [B, T, *]; ``state`` moves with it."""
        before = [state[f"state{i}"].transpose(0, 1).contiguous() for i in range(len(self.bridge))]
        states, after = self.rnn(x.transpose(0, 1), tuple(before) if len(before) > 1 else before[0])
        for i, each in enumerate(state_tensors(after)):
            state[f"state{i}"] = each.transpose(0, 1)
        return states.transpose(0, 1)

    def _step(self, x: Tensor, state: Dict[str, Tensor], attend: Any, place: int) -> Tuple[Tensor, Tensor]:
        if self.is_bahdanau:
            context, weights = attend(state["state0"][:, -1:], place)
            read = [self._run_rnn(torch.cat([x, context], dim=-1), state), context, x]
        else:
            states = self._run_rnn(torch.cat([x, state["fed"]], dim=-1) if self.input_feeding else x, state)
            context, weights = attend(states, place)
            read = [states, context]
        features = self.dropout_module(torch.tanh(self.readout(torch.cat(read, dim=-1))))
        if self.input_feeding:
            state["fed"] = features
        return features, weights

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Scores of words [B, T, V]."""
        return self.output_projection(features)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Give hypothesis i the state that hypothesis ``new_order[i]`` had. new_order: [N']."""
        state = self.get_incremental_state(incremental_state, "recurrent")
        if state is not None:
            moved = {name: part.index_select(0, new_order) for name, part in state.items()}
            self.set_incremental_state(incremental_state, "recurrent", moved)

    def max_positions(self) -> int:
        """Longest target."""
        return self.longest
