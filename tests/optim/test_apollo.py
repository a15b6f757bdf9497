"""Test Apollo as an optimizer of torch: properties, implementations, state, errors and warnings."""

import contextlib
import copy
import io
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from old_torch import WEIGHTS_ONLY

from luna_fairseq.errors import InputError
from luna_fairseq.optim import apollo as apollo_module
from luna_fairseq.optim import apollo_blocks
from luna_fairseq.optim.apollo import Apollo

SHAPES = [(3, 5), (7,), (), (1, 1), (2, 3, 1)]


def make_params(dtype=torch.float32, shapes=SHAPES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def set_grads(params, seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


@contextlib.contextmanager
def small_blocks():
    """Use blocks of four elements, so that small tensors are divided into blocks too."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(apollo_blocks, "SMALL_TENSOR", 0)
        monkeypatch.setattr(apollo_blocks, "BLOCK", 4)
        yield


def run(optimizer, params, steps, start=0):
    for step in range(start, start + steps):
        set_grads(params, step)
        optimizer.step()


def snapshot(params):
    return [p.detach().clone() for p in params]


def test_first_step_divides_the_gradient_by_sigma():
    params = make_params(torch.float64)
    before = snapshot(params)
    set_grads(params, 0)
    Apollo(params, lr=0.003, sigma=0.05).step()
    for p, old in zip(params, before):
        torch.testing.assert_close(p.detach(), old - 0.003 / 0.05 * p.grad)


@pytest.mark.parametrize("decay_type", ["L2", "stable"])
def test_scaling_sigma_and_learning_rate_together_changes_nothing(decay_type):
    small, large = make_params(torch.float64), make_params(torch.float64)
    options = {"weight_decay": 0.01, "weight_decay_type": decay_type}
    run(Apollo(small, lr=0.02, sigma=0.01, **options), small, 12)
    run(Apollo(large, lr=2.0, sigma=1.0, **options), large, 12)
    for p, q in zip(small, large):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("rebound", ["constant", "belief"])
def test_result_does_not_depend_on_the_other_tensors(rebound, foreach):
    together, alone = make_params(), make_params()
    run(Apollo(together, lr=0.01, rebound=rebound, foreach=foreach), together, 5)
    optimizers = [Apollo([p], lr=0.01, rebound=rebound, foreach=foreach) for p in alone]
    for step in range(5):
        set_grads(alone, step)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(together, alone):
        assert torch.equal(p, q)


def test_default_weight_decay_type_follows_the_rebound():
    params = make_params()
    assert Apollo(params, lr=0.1).param_groups[0]["weight_decay_type"] == "L2"
    assert Apollo(params, lr=0.1, rebound="belief").param_groups[0]["weight_decay_type"] == "decoupled"
    groups = [{"params": params[:1]}, {"params": params[1:], "rebound": "belief"}]
    types = [g["weight_decay_type"] for g in Apollo(groups, lr=0.1).param_groups]
    assert types == ["L2", "decoupled"]


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    rebound=st.sampled_from(["constant", "belief"]),
    decay_type=st.sampled_from([None, "L2", "decoupled", "stable"]),
    weight_decay=st.sampled_from([0.0, 0.01, 0.3]),
    beta=st.sampled_from([0.0, 0.5, 0.9]),
    eps=st.sampled_from([1e-8, 1e-4, 1e-2]),
    sigma=st.sampled_from([0.01, 0.3, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_all_implementations_agree(shapes, dtype, rebound, decay_type, weight_decay, beta, eps, sigma, seed):
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    trajectories = []
    for foreach in (False, True, None):
        params = make_params(dtype, shapes, seed)
        optimizer = Apollo(
            params, 0.2 * sigma, beta, eps, rebound, sigma, weight_decay, decay_type, foreach=foreach
        )
        with small_blocks():
            run(optimizer, params, 4, start=seed)
        trajectories.append(snapshot(params) + [optimizer.state[p]["update"] for p in params])
    # A value near 0 is a difference, so its error is compared with the initial values.
    begun = [p.detach().abs().max().item() for p in make_params(dtype, shapes, seed)] + [0.0] * len(shapes)
    for size, p, *others in zip(begun, *trajectories):
        assert p.dtype == dtype
        for q in others:
            atol = tolerance * max(size, p.abs().max().item())
            torch.testing.assert_close(p, q, rtol=tolerance, atol=atol)


def test_blocks_are_for_large_contiguous_tensors():
    """Other tensors, such as transposed ones, are updated without blocks and give exactly the same values."""
    reference, blocked = (make_params(shapes=[(3, 5), (300, 400)]) for _ in range(2))
    for params in (reference, blocked):
        params[1] = torch.nn.Parameter(params[1].detach().t())
        run(Apollo(params, lr=0.01, foreach=False if params is reference else None), params, 3)
    for p, q in zip(reference, blocked):
        assert torch.equal(p, q)


def test_multi_tensor_form_works_in_chunks(monkeypatch):
    whole, chunked = make_params(), make_params()
    run(Apollo(whole, lr=0.01, foreach=True), whole, 3)
    monkeypatch.setattr(apollo_module, "_MULTI_TENSOR_ELEMENTS", 8)
    sizes = [[p.numel() for p in chunk] for chunk in apollo_module._chunks(chunked, 8)]
    assert sizes == [[15], [7, 1], [1, 6]]
    run(Apollo(chunked, lr=0.01, foreach=True), chunked, 3)
    for p, q in zip(whole, chunked):
        assert torch.equal(p, q)


@pytest.mark.parametrize("foreach", [False, True])
def test_parameters_without_gradient_are_skipped(foreach):
    params = make_params()
    reference = make_params()
    optimizer = Apollo(params, lr=0.01, foreach=foreach)
    run(optimizer, params, 2)
    set_grads(params, 2)
    params[1].grad = None
    frozen = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1].detach(), frozen)
    assert [optimizer.state[p]["step"] for p in params] == [3, 2, 3, 3, 3]
    # The next update of this parameter has step count 3, although the others are at step 4.
    set_grads(params, 3)
    optimizer.step()
    other = Apollo(reference, lr=0.01, foreach=foreach)
    run(other, reference, 2)
    set_grads(reference, 3)
    other.step()
    assert torch.equal(params[1], reference[1])


@pytest.mark.parametrize("foreach", [False, True, None])
def test_zero_gradients_and_empty_tensors_stay_finite(foreach):
    for rebound in ("constant", "belief"):
        params = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.empty(0, 3))]
        optimizer = Apollo(params, lr=0.01, rebound=rebound, foreach=foreach)
        for _ in range(3):
            for p in params:
                p.grad = torch.zeros_like(p)
            optimizer.step()
        assert torch.equal(params[0].detach(), torch.ones(4))


@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_are_not_changed(foreach):
    params = make_params()
    optimizer = Apollo(params, lr=0.01, weight_decay=0.1, foreach=foreach)
    run(optimizer, params, 2)
    grads = [p.grad.clone() for p in params]
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(params, grads))


def test_closure_is_run_with_gradients():
    p = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = Apollo([p], lr=0.001)

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    torch.testing.assert_close(p.detach(), torch.tensor([3 - 0.001 / 0.01 * 6]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("foreach", [False, True])
def test_low_precision_parameters_are_updated_in_float32(dtype, foreach):
    params = make_params(dtype)
    exact = [torch.nn.Parameter(p.detach().float()) for p in params]
    optimizer = Apollo(params, lr=0.01, foreach=foreach)
    reference = Apollo(exact, lr=0.01, foreach=foreach)
    for step in range(5):
        set_grads(params, step)
        for p, q in zip(params, exact):
            q.data.copy_(p.detach().float())
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
        for p, q in zip(params, exact):
            assert p.dtype == dtype
            assert torch.equal(p.detach(), q.detach().to(dtype))
    for p, q in zip(params, exact):
        for name in ("exp_avg_grad", "approx_hessian", "update"):
            assert optimizer.state[p][name].dtype == torch.float32
            assert torch.equal(optimizer.state[p][name], reference.state[q][name])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{"foreach": True}, {}, {"rebound": "belief", "weight_decay": 0.01}])
def test_saved_and_restored_runs_are_identical(dtype, options):
    straight = make_params(dtype)
    straight_optimizer = Apollo(straight, lr=0.01, **options)
    run(straight_optimizer, straight, 9)

    first = make_params(dtype)
    first_optimizer = Apollo(first, lr=0.01, **options)
    run(first_optimizer, first, 4)
    buffer = io.BytesIO()
    torch.save((snapshot(first), first_optimizer.state_dict()), buffer)
    buffer.seek(0)
    values, state = torch.load(buffer, weights_only=WEIGHTS_ONLY)
    resumed = [torch.nn.Parameter(v) for v in values]
    resumed_optimizer = Apollo(resumed, lr=0.5, **options)
    resumed_optimizer.load_state_dict(state)
    run(resumed_optimizer, resumed, 5, start=4)

    for p, q in zip(straight, resumed):
        assert torch.equal(p, q)
        for name, value in straight_optimizer.state[p].items():
            other = resumed_optimizer.state[q][name]
            assert torch.equal(value, other) if torch.is_tensor(value) else value == other


def test_groups_without_sigma_get_it_on_loading():
    params = make_params()
    optimizer = Apollo(params, lr=0.01)
    run(optimizer, params, 2)
    state = copy.deepcopy(optimizer.state_dict())
    for name in ("sigma", "foreach", "weight_decay_type"):
        del state["param_groups"][0][name]
    restored = Apollo(params, lr=0.01)
    restored.load_state_dict(state)
    assert restored.param_groups[0]["sigma"] == 0.01
    assert restored.param_groups[0]["weight_decay_type"] == "L2"
    run(restored, params, 1)


@pytest.mark.parametrize(
    "options, word",
    [
        ({"lr": -0.1}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"lr": "0.1"}, "lr"),
        ({"lr": None}, "lr"),
        ({"beta": 1.0}, "beta"),
        ({"beta": -0.1}, "beta"),
        ({"beta": (0.9, 0.999)}, "beta"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1e-4}, "eps"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"weight_decay": True}, "weight_decay"),
        ({"rebound": "believe"}, "rebound"),
        ({"weight_decay_type": "l2"}, "weight_decay_type"),
    ],
)
def test_bad_hyperparameters_are_rejected_in_one_line(options, word):
    for build in (
        lambda: Apollo(make_params(), **{"lr": 0.1, **options}),
        lambda: Apollo([{"params": make_params(), **options}], lr=0.1),
    ):
        with pytest.raises(ValueError) as error:
            build()
        assert isinstance(error.value, InputError)
        message = str(error.value)
        assert message.startswith(f"Apollo: {word} must be") and "\n" not in message


def test_a_rejected_group_is_not_added():
    optimizer = Apollo(make_params(), lr=0.1)
    for group in ({"params": torch.zeros(2, dtype=torch.complex64)}, {"params": make_params(), "lr": -1}):
        with pytest.raises(InputError):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("foreach", [False, True])
def test_sparse_gradients_are_rejected_before_anything_changes(foreach):
    embedding, dense = torch.nn.Embedding(5, 3, sparse=True), make_params()
    embedding(torch.tensor([1, 2])).sum().backward()
    optimizer = Apollo([*dense, embedding.weight], lr=0.1, foreach=foreach)
    set_grads(dense, 0)
    before = snapshot([*dense, embedding.weight])
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert not optimizer.state
    assert all(map(torch.equal, before, [*dense, embedding.weight]))


@pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_load_state_dict_pre_hook"), reason="this torch has no hooks"
)
def test_a_state_that_a_hook_changed_is_loaded():
    saved = make_params(torch.bfloat16)
    optimizer = Apollo(saved, lr=0.01)
    run(optimizer, saved, 3)
    state = optimizer.state_dict()
    last = max(state["state"])

    def exchanged(_, given):
        return {**given, "state": {last - key: value for key, value in given["state"].items()}}

    seen = []
    restored = Apollo(make_params(torch.bfloat16)[::-1], lr=0.01)
    restored.register_load_state_dict_pre_hook(exchanged)
    restored.register_load_state_dict_post_hook(
        lambda optimizer: seen.extend(s["update"].dtype for s in optimizer.state.values())
    )
    restored.load_state_dict(state)
    for p, q in zip(saved[::-1], restored.param_groups[0]["params"]):
        assert torch.equal(optimizer.state[p]["update"], restored.state[q]["update"])
    assert set(seen) == {torch.float32}


def test_a_loaded_state_has_no_other_keys():
    params = make_params()
    optimizer = Apollo(params, lr=0.01)
    run(optimizer, params, 1)
    before = set(optimizer.param_groups[0])
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
    assert set(optimizer.param_groups[0]) == before


def test_belief_on_rounded_parameters_brings_a_warning():
    apollo_module._warn_about_rounded_belief.cache_clear()
    with pytest.warns(UserWarning, match="Keep the parameters in float32"):
        Apollo(make_params(torch.bfloat16), lr=0.01, rebound="belief")


def apollo_warnings(lr, sigma, times=1, **options):
    apollo_module._warn_about_learning_rate.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            Apollo(make_params(), lr=lr, sigma=sigma, **options)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("lr, sigma", [(10, 0.01), (1, 0.01), (100, 1), (0.1, 1), (0.01, 1), (0.01, 0.1)])
def test_learning_rate_of_the_other_convention_brings_one_warning(lr, sigma):
    (message,) = apollo_warnings(lr, sigma, times=3)
    assert "two conventions" in message and f"sigma {sigma:g}" in message
    assert ("too large" in message) == (lr / sigma > 1)


@pytest.mark.parametrize(
    "lr, sigma", [(0.1, 0.01), (0.5, 0.01), (0.003, 0.01), (1e-5, 0.01), (10, 1), (1, 1), (0.3, 1), (0, 1)]
)
def test_learning_rate_of_the_own_convention_brings_none(lr, sigma):
    assert apollo_warnings(lr, sigma) == []


def test_belief_does_not_use_sigma_and_does_not_warn():
    assert apollo_warnings(10, 0.01, rebound="belief") == []
