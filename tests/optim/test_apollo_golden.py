"""Apollo against trajectories of the authors' implementation (../shared/golden, when present)."""

from pathlib import Path

import pytest
import torch

from luna_fairseq.optim.apollo import Apollo

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
FILES = {
    "apollo_constant_sigma001_L2": 0.01,
    "apollo_constant_sigma1_decoupled": 1.0,
    "apollo_belief_stable": 0.01,
}


def load(name):
    path = GOLDEN / f"{name}.pt"
    if not path.exists():
        pytest.skip(f"no reference vectors at {path}")
    return torch.load(path, weights_only=True)


@pytest.mark.filterwarnings("ignore:Apollo. learning rate")
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("precision", ["f64", "f32"])
@pytest.mark.parametrize("case", ["grad1", "grad0.01", "quadratic"])
@pytest.mark.parametrize("name", sorted(FILES))
def test_trajectory(name, case, precision, foreach):
    golden = load(name)
    hyper = golden["hyper"]
    inputs = golden["cases"][case]["inputs"]
    expected = golden["cases"][case][precision]
    dtype = torch.float64 if precision == "f64" else torch.float32
    # Rounding in another order may cost more in float32: the authors' own float32 run is up to 4.8e-5 away from
    # their float64 run.
    tolerance = 1e-9 if precision == "f64" else 1e-4 if foreach else 1e-5
    params = [torch.nn.Parameter(p.to(dtype, copy=True)) for p in inputs["params"]]
    optimizer = Apollo(
        params,
        lr=inputs["lr"][-1],
        beta=hyper["beta"],
        eps=hyper["eps"],
        rebound=hyper["rebound"],
        sigma=FILES[name],
        weight_decay=hyper["weight_decay"],
        weight_decay_type=hyper["weight_decay_type"],
        foreach=foreach,
    )
    for step, lr in enumerate(inputs["lr"]):
        optimizer.param_groups[0]["lr"] = lr
        for i, p in enumerate(params):
            if case == "quadratic":
                p.grad = inputs["curv"][i].to(dtype) * p.detach()
            else:
                p.grad = inputs["grads"][step][i].to(dtype)
        optimizer.step()
        for p, want in zip(params, expected["params_after_step"][step]):
            assert relative_error(p.detach(), want) <= tolerance
        # Where the quadratic diverges, rounding grows with it: float32 is compared while the losses are small.
        if case == "quadratic" and precision == "f32" and step == 7:
            return
    for p, want in zip(params, expected.get("final_state", [])):
        state = optimizer.state[p]
        assert state["step"] == want["step"]
        for key in ("exp_avg_grad", "approx_hessian", "update"):
            assert relative_error(state[key], want[key]) <= tolerance


def relative_error(got, want):
    return ((got - want).abs() / want.abs().clamp(min=1)).max().item()
