"""Test Apollo in fairseq: configuration, clipping per parameter, and fairseq's fp16 and bf16 wrappers."""

from copy import deepcopy
from functools import lru_cache
from types import SimpleNamespace

import golden
import pytest
import torch
from omegaconf import OmegaConf

import luna_fairseq.optim  # noqa: F401  registers
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer, build_optimizer
from fairseq.optim.bmuf import FairseqBMUF
from fairseq.optim.composite import CompositeOptimizerConfig
from fairseq.trainer import Trainer
from luna_fairseq.errors import InputError
from luna_fairseq.optim.apollo import Apollo
from luna_fairseq.optim.fairseq_apollo import FairseqApollo, clip_each, gradient_norms

SHAPES = [(4, 6), (5,), (2, 3, 2)]
WRAPPERS = {
    "bf16": (FP16Optimizer, ["--bf16"], torch.bfloat16),
    "fp16": (FP16Optimizer, ["--fp16", "--fp16-no-flatten-grads"], torch.float16),
    "memory-efficient-bf16": (MemoryEfficientFP16Optimizer, ["--memory-efficient-bf16"], torch.bfloat16),
    "memory-efficient-fp16": (MemoryEfficientFP16Optimizer, ["--memory-efficient-fp16"], torch.float16),
}


@lru_cache(maxsize=None)
def config(*words):
    command = [*"--task dummy_lm --arch transformer_lm --optimizer apollo --lr 0.01".split(), *words]
    # --fp16 is rejected without a GPU, but fairseq's wrappers compute the same on a CPU.
    half = [word[2:].replace("-", "_") for word in words if word in ("--fp16", "--memory-efficient-fp16")]
    command = [word for word in command if word not in ("--fp16", "--memory-efficient-fp16")]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    for name in ("fp16", *half) if half else ():
        cfg.common[name] = True
    return cfg


def make_params(dtype=torch.float32):
    """Return parameters with values that float32, float16 and bfloat16 represent exactly."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.nn.Parameter((torch.randint(-64, 65, shape, generator=generator) / 32).to(dtype))
        for shape in SHAPES
    ]


def make_grads(seed):
    """Return gradients of very different norms, exact in every type."""
    generator = torch.Generator().manual_seed(seed)
    scales = (4.0, 2.0**-6, 1.0)
    return [torch.randint(-16, 17, s, generator=generator) / 16 * c for s, c in zip(SHAPES, scales)]


def optimizer_step(optimizer, params, grads):
    """Apply gradients as fairseq's trainer does with --clip-norm 0.5, and return the norm that it logs."""
    sample_size = 4
    optimizer.zero_grad()
    scaler = getattr(optimizer, "scaler", None)
    factor = sample_size * (scaler.loss_scale if scaler is not None else 1.0)
    for p, g in zip(params, grads):
        p.grad = (g * factor).to(p.dtype)
    optimizer._needs_sync = True
    optimizer.multiply_grads(1 / sample_size)
    norm = Trainer.clip_grad_norm(SimpleNamespace(optimizer=optimizer, is_fsdp=False), 0.5)
    optimizer.step()
    return norm


def test_defaults_of_the_command_line_are_those_of_the_class():
    optimizer = build_optimizer(config().optimizer, make_params())
    assert isinstance(optimizer, FairseqApollo)
    assert optimizer.optimizer_config == {
        "lr": 0.01,
        "beta": 0.9,
        "eps": 1e-4,
        "rebound": "constant",
        "sigma": 0.01,
        "weight_decay": 0.0,
        "weight_decay_type": None,
    }
    plain = Apollo(make_params(), lr=0.01).param_groups[0]
    group = optimizer.optimizer.param_groups[0]
    assert {k: v for k, v in group.items() if k != "params"} == {
        k: v for k, v in plain.items() if k != "params"
    }


def test_options_reach_the_optimizer():
    words = "--apollo-beta 0.8 --apollo-eps 1e-3 --apollo-rebound belief --apollo-sigma 0.5"
    words += " --weight-decay 0.02 --weight-decay-type stable --clip-mode each --clip-norm 0.1"
    optimizer = build_optimizer(config(*words.split()).optimizer, make_params())
    group = dict(optimizer.optimizer.param_groups[0])
    del group["params"]
    assert group == {
        "lr": 0.01,
        "beta": 0.8,
        "eps": 1e-3,
        "rebound": "belief",
        "sigma": 0.5,
        "weight_decay": 0.02,
        "weight_decay_type": "stable",
        "foreach": None,
    }
    # Checkpoints store the group and are read with weights_only, which accepts plain strings only.
    assert type(group["rebound"]) is str and type(group["weight_decay_type"]) is str
    assert optimizer.clips_each_parameter
    assert config("--wd", "0.02").optimizer.weight_decay == 0.02  # as in the authors' code


@pytest.mark.parametrize(
    "words", ["--clip-mode all", "--apollo-rebound believe", "--weight-decay-type l2"], ids=str.split
)
def test_unknown_choices_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        config(*words.split())
    assert stop.value.code == 2
    last_line = capsys.readouterr().err.strip().splitlines()[-1]
    assert words.split()[0] in last_line and "invalid choice" in last_line


@pytest.mark.parametrize(
    "words, message",
    [
        ("--amp", "--amp does not work"),
        ("--apollo-beta 1", "beta 1: must"),
        ("--apollo-sigma 0", "sigma 0: must"),
    ],
)
def test_bad_options_are_refused(words, message):
    with pytest.raises(ValueError, match=message) as error:
        build_optimizer(config(*words.split()).optimizer, make_params())
    assert "\n" not in str(error.value)


def test_flattened_fp16_parameters_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(RuntimeError, match="please set --fp16-no-flatten-grads"):
        FP16Optimizer.build_optimizer(config("--fp16"), make_params(torch.float16))


@pytest.mark.parametrize("mode", ["total", "each"])
@pytest.mark.parametrize("max_norm", [0, 0.1, 1, 100])
def test_clipping_in_training_golden(mode, max_norm, monkeypatch):
    vectors = golden.load("clip")
    case = vectors["cases"][f"{mode}_{max_norm}"]
    params = [torch.nn.Parameter(torch.zeros_like(g)) for g in vectors["grads"]]
    cfg = config("--clip-mode", mode, "--clip-norm", str(max_norm))
    optimizer = build_optimizer(cfg.optimizer, params)
    for p, g in zip(params, vectors["grads"]):
        p.grad = g.clone()
    norm = optimizer.clip_grad_norm(cfg.optimization.clip_norm)
    golden.assert_close(norm, torch.tensor(case["returned_norm"]), "f32")
    seen = []
    monkeypatch.setattr(optimizer.optimizer, "step", lambda closure: seen.extend(p.grad for p in params))
    optimizer.step()
    for got, want in zip(seen, case["grads_after"]):
        golden.assert_close(got, want, "f32")


def test_clip_each_uses_float32_and_accepts_an_empty_list():
    big = torch.full((300,), 300.0, dtype=torch.float16)
    small = torch.full((4,), 1e-4, dtype=torch.float16)
    norms = gradient_norms([big, small])
    assert norms.dtype == torch.float32
    torch.testing.assert_close(norms, torch.tensor([300 * 300**0.5, 2e-4]), rtol=1e-3, atol=1e-6)
    assert clip_each([], 1.0).numel() == 0
    optimizer = build_optimizer(config("--clip-mode", "each").optimizer, make_params())
    assert optimizer.clip_grad_norm(1.0).item() == 0.0
    assert torch.isnan(gradient_norms([torch.tensor([float("nan")]), torch.ones(2)]).max())


@pytest.mark.parametrize("name", sorted(WRAPPERS))
@pytest.mark.parametrize("mode", ["each", "total"])
def test_wrappers_update_in_float32(name, mode):
    wrapper, words, dtype = WRAPPERS[name]
    words = [*words, "--clip-mode", mode, "--clip-norm", "0.5"]
    params, exact = make_params(dtype), make_params()
    wrapped = wrapper.build_optimizer(config(*words), params)
    plain = build_optimizer(config("--clip-mode", mode, "--clip-norm", "0.5").optimizer, exact)
    # The wrappers of float32 copies scale in float32; the memory-efficient ones in the gradient's type.
    copies = wrapper is FP16Optimizer
    tolerance = 1e-5 if copies else {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for seed in range(4):
        grads = make_grads(seed)
        norm = optimizer_step(wrapped, params, grads)
        expected = optimizer_step(plain, exact, grads)
        torch.testing.assert_close(float(norm), float(expected), rtol=1e-5, atol=0)
    updated = wrapped.fp32_params if copies else params
    for p, q in zip(updated, exact):
        got, want = wrapped.optimizer.state[p], plain.optimizer.state[q]
        for key in ("exp_avg_grad", "update"):
            assert got[key].dtype == torch.float32
            scale = want[key].abs().max().item()
            torch.testing.assert_close(got[key], want[key], rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", ["fp16", "memory-efficient-fp16"])
def test_overflow_is_detected(name):
    wrapper, words, dtype = WRAPPERS[name]
    params = make_params(dtype)
    wrapped = wrapper.build_optimizer(config(*words, "--clip-mode", "each", "--clip-norm", "0.5"), params)
    before = [p.detach().clone() for p in params]
    grads = make_grads(0)
    grads[1][0] = float("inf")
    with pytest.raises(OverflowError):
        optimizer_step(wrapped, params, grads)
    assert wrapped.scaler.loss_scale == 64
    assert all(torch.equal(p, old) for p, old in zip(params, before))


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_wrapped_runs_resume_exactly(name):
    wrapper, words, dtype = WRAPPERS[name]

    def build():
        params = make_params(dtype)
        return params, wrapper.build_optimizer(
            config(*words, "--clip-mode", "each", "--clip-norm", "0.5"), params
        )

    straight, optimizer = build()
    for seed in range(6):
        optimizer_step(optimizer, straight, make_grads(seed))
        if seed == 2:
            saved = deepcopy(optimizer.state_dict())
            values = [p.detach().clone() for p in straight]
            copies = [p.detach().clone() for p in getattr(optimizer, "fp32_params", [])]
    resumed, resumed_optimizer = build()
    for p, v in zip(resumed, values):
        p.data.copy_(v)
    for p, v in zip(getattr(resumed_optimizer, "fp32_params", []), copies):
        p.data.copy_(v)
    resumed_optimizer.load_state_dict(saved)
    for seed in range(3, 6):
        optimizer_step(resumed_optimizer, resumed, make_grads(seed))
    assert all(torch.equal(p, q) for p, q in zip(straight, resumed))
    if optimizer.scaler is not None:
        assert vars(optimizer.scaler) == vars(resumed_optimizer.scaler)


def test_options_of_a_resumed_run_are_those_of_its_command():
    """The state of a checkpoint has options, too, which fairseq prefers. The schedule sets the rate."""
    saved = build_optimizer(config().optimizer, make_params()).state_dict()
    words = "--lr 7 --apollo-beta 0.8 --apollo-sigma 0.5 --weight-decay 0.02 --weight-decay-type stable"
    optimizer = build_optimizer(config(*words.split()).optimizer, make_params())
    optimizer.load_state_dict(saved)
    wanted = {"beta": 0.8, "sigma": 0.5, "weight_decay": 0.02, "weight_decay_type": "stable", "lr": 0.01}
    assert {name: optimizer.optimizer.param_groups[0][name] for name in wanted} == wanted
    optimizer.load_state_dict(saved, {"beta": 0.7})
    assert optimizer.optimizer.param_groups[0]["beta"] == 0.7


@pytest.mark.parametrize("rebound, decay_type", [("constant", "L2"), ("belief", "decoupled")])
def test_a_resumed_run_keeps_the_default_weight_decay(rebound, decay_type):
    words = ("--apollo-rebound", rebound, "--weight-decay", "0.1")
    params = [make_params(), make_params()]
    whole, resumed = (build_optimizer(config(*words).optimizer, one) for one in params)
    resumed.load_state_dict(whole.state_dict())
    assert resumed.optimizer.param_groups[0]["weight_decay_type"] == decay_type
    for optimizer, one in zip((whole, resumed), params):
        optimizer.set_lr(0.1)
        for p, g in zip(one, make_grads(0)):
            p.grad = g
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(*params))


def test_closure_and_scale_come_before_clipping():
    params = make_params()
    optimizer = build_optimizer(config("--clip-mode", "each", "--clip-norm", "0.5").optimizer, params)
    grads = make_grads(0)

    def closure():
        for p, g in zip(params, grads):
            p.grad = g * 8

    optimizer.step(closure, scale=8.0)
    assert torch.equal(params[1].grad, grads[1])
    torch.testing.assert_close(params[0].grad.norm().item(), 0.5, rtol=1e-4, atol=0)


@pytest.mark.parametrize("mode", ["each", "total"])
def test_clipping_with_bmuf(mode):
    wrapper, words, dtype = WRAPPERS["memory-efficient-bf16"]
    cfg = config(*words, "--clip-mode", mode, "--clip-norm", "0.5")
    params = [make_params(dtype), make_params(dtype)]
    plain, inner = (wrapper.build_optimizer(cfg, one) for one in params)
    for optimizer, one in zip((plain, FairseqBMUF(cfg.bmuf, inner)), params):
        optimizer_step(optimizer, one, make_grads(0))
    assert all(torch.equal(p, q) for p, q in zip(*params))


@pytest.mark.parametrize("words", [(), ("--bf16",)])
def test_clip_each_of_a_group_is_refused(words):
    """A composite optimizer clips the norm of all its groups together."""
    cfg = deepcopy(config(*words, "--clip-mode", "each", "--clip-norm", "0.5"))
    group = {"optimizer": cfg.optimizer, "lr_scheduler": {"_name": "fixed"}, "lr_float": 0.1}
    cfg.optimizer = OmegaConf.structured(CompositeOptimizerConfig(groups={"default": group}))
    cfg.optimizer._name = "composite"
    params = make_params(torch.bfloat16 if words else torch.float32)
    build = (
        FP16Optimizer.build_optimizer if words else lambda cfg, params: build_optimizer(cfg.optimizer, params)
    )
    with pytest.raises(InputError, match="^clip_mode=each in a group of optimizer=composite") as error:
        optimizer_step(build(cfg, params), params, make_grads(0))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_the_state_of_another_optimizer_is_refused(name):
    """fairseq compares the names of the wrappers, which are equal."""
    wrapper, words, dtype = WRAPPERS[name]
    params = make_params(dtype)
    cfg = deepcopy(config(*words))
    apollo = wrapper.build_optimizer(cfg, make_params(dtype))
    apollo.load_state_dict(deepcopy(apollo.state_dict()))  # before the first update, it has no tensors
    cfg.optimizer = OmegaConf.create({"_name": "adam", "lr": [0.01]})
    adam = wrapper.build_optimizer(cfg, params)
    optimizer_step(adam, params, make_grads(0))
    message = r"^the optimizer state in the checkpoint \(.*exp_avg_sq.*\) is not Apollo's.*--reset-optimizer"
    with pytest.raises(InputError, match=message):
        apollo.load_state_dict(adam.state_dict())


def test_other_optimizers_are_still_clipped_by_the_wrapper():
    params = make_params(torch.bfloat16)
    command = ["--task", "dummy_lm", "--arch", "transformer_lm", "--optimizer", "sgd", "--lr", "1", "--bf16"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    wrapped = FP16Optimizer.build_optimizer(cfg, params)
    before = [p.detach().clone() for p in wrapped.fp32_params]
    optimizer_step(wrapped, params, make_grads(0))
    change = torch.cat([(p - old).flatten() for p, old in zip(wrapped.fp32_params, before)])
    torch.testing.assert_close(change.norm().item(), 0.5, rtol=1e-4, atol=0)


def test_clip_each_of_float64():
    double, single = (torch.tensor([3.0, 4.0], dtype=dtype) for dtype in (torch.float64, torch.float32))
    norms = clip_each([double, single, torch.zeros(0)], 1.0)
    assert norms.dtype is torch.float64 and norms.tolist() == [5.0, 5.0, 0.0]
    assert double.dtype is torch.float64 and double.tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    assert single.dtype is torch.float32 and single.tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
