"""Takes from all vectors of the authors' code those that are shipped: ``python ship_authors.py FOLDER``.

A file is a JSON tree, in which numbers stand and arrays are named, and the arrays, each once. Outputs are
float64's alone, weights and inputs float32 as they were drawn.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

# file -> branches that are kept, as paths; None: all. Of outputs, what tests read.
BRANCHES = {
    "mha_tied_self": ("state_dict", "config", "cases/pad_pmask"),
    "mha_untied_cross": ("state_dict", "config", "cases/pad_pmask"),
    "causal_kernels": None,
    "causal_tied": ("state_dict", "config", "cases/softplus_pmask", "cases/elu"),
    "encoder_layer_postnorm": (
        "variants/tied/config",
        "variants/tied/state_dict",
        "variants/tied/cases/masks",
    ),
    "decoder_layer_postnorm": (
        "variants/tied/config",
        "variants/tied/state_dict",
        "variants/tied/cases/masks",
    ),
    "luna_model_tied_dynproj": ("args", "args_none", "dictionary", "state_dict", "cases/pad"),
    "apollo_constant_sigma001_L2": ("hyper", "cases/quadratic"),
    "apollo_constant_sigma1_decoupled": ("hyper", "cases/quadratic"),
    "apollo_belief_stable": ("hyper", "cases/quadratic"),
    "milestone": None,
    "clip": None,
    "init_stats": None,
}
LEFT_OUT = {"f32", "grads_seq", "pattern", "attn_seq"}
# Of the whole model: each parameter's gradient, of which the norms stay.
LEFT_OUT_OF_MODELS = {"lprobs", "grads", "encoder_embedding"}


def kept(tree, branches, left_out, path=""):
    if not isinstance(tree, dict):
        return tree
    result = {}
    for name, value in tree.items():
        here = f"{path}/{name}".strip("/")
        wanted = branches is None or any(
            here.startswith(branch) or branch.startswith(f"{here}/") for branch in branches
        )
        if name not in left_out and wanted:
            result[name] = kept(value, branches, left_out, here)
    return result


def write(path, tree):
    arrays, names = {}, {}

    def named(branch):
        if isinstance(branch, dict):
            return {name: named(value) for name, value in branch.items()}
        if isinstance(branch, list):
            return [named(value) for value in branch]
        if not torch.is_tensor(branch):
            return branch
        array = branch.numpy()
        key = array.dtype.str, array.shape, array.tobytes()
        names.setdefault(key, f"a{len(names)}")
        arrays[names[key]] = array
        return {"array": names[key]}

    tree = json.dumps(named(tree))
    np.savez_compressed(path, tree=np.array(tree), **arrays)


def main(folder):
    for name, branches in BRANCHES.items():
        tree = torch.load(Path(folder) / f"{name}.pt", weights_only=True)
        left_out = LEFT_OUT | (LEFT_OUT_OF_MODELS if name.startswith("luna_model") else set())
        if name.startswith("apollo"):  # thirty updates in float32 are no rounding of those in float64
            left_out = set()
        write(Path(__file__).parent / "authors" / f"{name}.npz", kept(tree, branches, left_out))


if __name__ == "__main__":
    main(sys.argv[1])
