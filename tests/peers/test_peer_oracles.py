"""The peers against implementations of other people, where a package has one: weights carried over, outputs
equal.

transformers is among the requirements of the tests. The others are not, and a test without its package is
skipped; to have them: ``pip install --no-deps --target DIR einops performer-pytorch local-attention linformer
reformer-pytorch sinkhorn-transformer axial-positional-embedding product-key-memory hyper-connections
colt5-attention flash-linear-attention fla-core`` and DIR on PYTHONPATH.

What differs from the papers or from ours, and is set aside here: performer-pytorch adds 1e-4 to features and
draws its directions unevenly; linformer has no biases; reformer-pytorch scales logits by the root of the
width, and cuts sorted positions into chunks, which here hold everything; FLA's ABC accumulates in float32;
transformers' BigBird has its last block among the global ones, which here is padding, and draws random blocks
in training alone; sinkhorn-transformer takes one block, not the balanced mixture, and its keys for its
values.
"""

from argparse import Namespace

import pytest
import torch
from peer_cases import LONGEST, C, H, assert_close, build, sequence
from torch.nn import functional as F

pytestmark = pytest.mark.slow
K = C // H


def heads(length, count=3, seed=0):
    """Random q, k, v .. [2, H, T, K], float64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, H, length, K, generator=generator, dtype=torch.float64) for _ in range(count)]


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
    output = theirs(
        x,
        attention_mask=mask,
        is_index_masked=padding,
        is_index_global_attn=mask > 0,
        is_global_attn=True,
    )[0]
    merged = ours.attend(*ours.project(x.transpose(0, 1)), padding=padding).transpose(1, 2).flatten(2)
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
    seen, left_out = ours.seen_blocks(padding)
    assert not left_out[:, 1:-1, -2:].any()
    drawn = seen[0, 1:-1, -2:].numpy()
    theirs._bigbird_block_rand_mask_with_head = lambda **kwargs: [drawn] * H
    blocked, band, of_from, of_to = bigbird.BigBirdModel.create_masks_for_block_sparse_attn(
        (~padding).double(), size
    )
    x = sequence(size * blocks)
    output = theirs(x.transpose(0, 1), band, of_from, of_to, blocked, blocked)[0]
    merged = ours.attend(*ours.project(x), padding=padding).transpose(1, 2).flatten(2)
    assert_close(merged[~padding], output[~padding], 1e-5)


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_performer_is_that_of_performer_pytorch(form):
    package = pytest.importorskip("performer_pytorch.performer_pytorch")
    ours, (q, k, v) = build("performer", form), heads(21)
    matrix = {"projection_matrix": ours.features.values.double(), "eps": 0.0}
    theirs = (package.softmax_kernel(x, is_query=query, **matrix) for x, query in ((q, True), (k, False)))
    if form == "causal":
        expected = package.causal_linear_attention_noncuda(*theirs, v, eps=0.0)
    else:
        expected = package.linear_attention(*theirs, v)
    assert_close(ours.attend(q, k, v), expected, 1e-5)


def test_linear_attention_is_that_of_performer_pytorch_with_the_same_feature_map():
    package = pytest.importorskip("performer_pytorch.performer_pytorch")
    q, k, v = heads(21)
    options = {
        "projection_matrix": None,
        "kernel_fn": lambda x: F.elu(x) + 1,
        "kernel_epsilon": 0.0,
        "normalize_data": False,
    }
    features = [package.generalized_kernel(x, **options) for x in (q, k)]
    assert_close(
        build("linear", "bidirectional").attend(q, k, v), package.linear_attention(*features, v), 1e-5
    )


def test_causal_linear_attention_is_that_of_fla():
    fla = pytest.importorskip("fla.ops.linear_attn.naive")
    q, k, v = heads(37)
    features = [(F.elu(x) + 1).transpose(1, 2) for x in (q, k)]
    expected, _ = fla.naive_recurrent_linear_attn(*features, v.transpose(1, 2), scale=1.0, normalize=True)
    assert_close(build("linear", "causal").attend(q, k, v), expected.transpose(1, 2), 1e-5)


def test_causal_abc_is_that_of_fla():
    fla = pytest.importorskip("fla.ops.abc.naive")
    q, k, v, control = heads(37, 4)
    expected, _ = fla.naive_recurrent_abc(q, k, v, control)
    assert_close(build("abc", "causal").attend(q, k, v, control), expected, 1e-5)


def test_linformer_is_that_of_linformer():
    package = pytest.importorskip("linformer.linformer")
    ours = build("linformer", "bidirectional")
    theirs = package.LinformerSelfAttention(C, LONGEST, k=6, heads=H).double()
    with torch.no_grad():
        for name in "qkv":
            getattr(ours, f"{name}_proj").bias.zero_()
            getattr(theirs, f"to_{name}").weight.copy_(getattr(ours, f"{name}_proj").weight)
        for theirs_along, ours_along in zip((theirs.proj_k, theirs.proj_v), ours.length_proj):
            theirs_along.copy_(ours_along[0].t())
        theirs.to_out.load_state_dict(ours.out_proj.state_dict())
    for length in (LONGEST, 17):
        x = sequence(length)
        assert_close(ours(x)[0], theirs(x.transpose(0, 1)).transpose(0, 1), 1e-5)


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_local_attention_is_that_of_local_attention(form):
    package = pytest.importorskip("local_attention.local_attention")
    theirs = package.LocalAttention(
        window_size=3, causal=form == "causal", exact_windowsize=True, use_rotary_pos_emb=False
    )
    q, k, v = heads(24)
    assert_close(build("local", form).attend(q, k, v), theirs(q, k, v), 1e-5)


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_reformer_is_that_of_reformer_pytorch(form):
    package = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    ours, (qk, v) = (
        build("reformer", form, reformer_hashes=1, reformer_buckets=2, reformer_chunk=24),
        heads(24, 2),
    )
    theirs = package.LSHAttention(
        bucket_size=12, n_hashes=1, causal=form == "causal", attend_across_buckets=False
    )
    buckets, _ = ours.hash(qk, None)
    theirs.hash_vectors = lambda n_buckets, vectors, **kwargs: buckets.flatten(0, 2)
    expected = theirs(qk.flatten(0, 1) * K**0.5, v.flatten(0, 1))[0].unflatten(0, (2, H))
    assert_close(ours.attend(qk, v), expected, 1e-5)


def test_sinkhorn_attention_is_that_of_sinkhorn_transformer():
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    ours, (q, k), x = build("sinkhorn", "bidirectional"), heads(24, 2), sequence(24).transpose(0, 1)[:, None]
    permutation = ours.permute(x, None)
    theirs = package.SinkhornAttention(bucket_size=3, dim=C, dim_heads=K, heads=H, max_seq_len=24)
    theirs.sort_net.forward = lambda *args, **kwargs: permutation.flatten(0, 1)
    assert_close(ours.attend(q, k, k, x), theirs(q, k, k), 1e-5)


def test_sinkhorn_balancing_is_that_of_sinkhorn_transformer():
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    ours, (logits,) = build("sinkhorn", "bidirectional"), heads(K, 1)
    everything = torch.ones_like(logits, dtype=torch.bool)
    expected = package.sinkhorn_sorting_operator(logits.flatten(0, 1), ours.iterations)
    assert_close(ours.balance(logits, everything), expected.unflatten(0, (2, H)), 1e-5)
