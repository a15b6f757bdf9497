"""Compare peer attentions with the implementations in transformers, with the same weights.

The BigBird of transformers differs in two ways: its last block is a global block, which is padding here, and
random blocks are drawn in training only. At version 0.1.0, this file also compared other peers with
performer-pytorch, linformer, local-attention, reformer-pytorch, sinkhorn-transformer and
flash-linear-attention.
"""

from argparse import Namespace

import pytest
import torch
from peer_cases import C, H, assert_close, build, sequence

pytestmark = pytest.mark.slow


def test_longformer_is_that_of_transformers():
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = Namespace(
        hidden_size=C, num_attention_heads=H, attention_window=[4], attention_probs_dropout_prob=0.0
    )
    theirs = longformer.LongformerSelfAttention(config, layer_id=0).double().eval()
    ours = build("longformer", "bidirectional")
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    for name, own in names.items():
        getattr(theirs, name).load_state_dict(getattr(ours, own).state_dict())
        getattr(theirs, f"{name}_global").load_state_dict(getattr(ours, f"global_{own}").state_dict())
    x = sequence(16).transpose(0, 1)
    mask = torch.zeros(2, 16)
    mask[:, :2] = 10000.0  # global
    padding = torch.zeros(2, 16, dtype=torch.bool)
    padding[1, 12:] = True
    mask[padding] = -10000.0
    which = {"is_index_masked": padding, "is_index_global_attn": mask > 0, "is_global_attn": True}
    output = theirs(x, attention_mask=mask, **which)[0]
    merged = ours.attend(*ours.project(x.transpose(0, 1)), padding_mask=padding).transpose(1, 2).flatten(2)
    assert_close(merged[~padding], output[~padding], 1e-5)


def test_bigbird_is_that_of_transformers():
    bigbird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    size, blocks = 4, 9
    ours = build("bigbird", "bidirectional", bigbird_block=size)
    config = Namespace(
        hidden_size=C, num_attention_heads=H, num_random_blocks=2, block_size=size, use_bias=True
    )
    config.max_position_embeddings = size * blocks
    theirs = bigbird.BigBirdBlockSparseAttention(config, seed=0).double()
    for name, own in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        getattr(theirs, name).load_state_dict(getattr(ours, own).state_dict())
    padding = torch.zeros(2, size * blocks, dtype=torch.bool)
    padding[:, -size:] = padding[1, -size - 2 :] = True
    seen, unused = ours.choose_blocks(padding)
    assert not unused[:, 1:-1, -2:].any()
    drawn = seen[0, 1:-1, -2:].numpy()
    theirs._bigbird_block_rand_mask_with_head = lambda **kwargs: [drawn] * H
    blocked, band, of_from, of_to = bigbird.BigBirdModel.create_masks_for_block_sparse_attn(
        (~padding).double(), size
    )
    x = sequence(size * blocks)
    output = theirs(x.transpose(0, 1), band, of_from, of_to, blocked, blocked)[0]
    merged = ours.attend(*ours.project(x), padding_mask=padding).transpose(1, 2).flatten(2)
    assert_close(merged[~padding], output[~padding], 1e-5)
