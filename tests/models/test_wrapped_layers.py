"""Decoder layers that are checkpointed or sharded compute the same, by both of their methods."""

import copy
import weakref

import pytest
import torch
from tiny_luna import assert_close, tiny_model
from tiny_models import language_model, language_model_loss, loss_and_gradients, translation_loss

from luna_fairseq.models import fairseq_layers
from luna_fairseq.modules.batch import Source
from luna_fairseq.modules.memory import flatten_tensors

BOTH = [(tiny_model, translation_loss), (language_model, language_model_loss)]


class Gathering(torch.nn.Module):
    """Stand-in of FSDP: parameters exist while ``forward`` runs."""

    def __init__(self, module):
        super().__init__()
        self.module, self.is_gathered = module, False
        for part in module.modules():
            part.register_forward_pre_hook(self.check)

    def check(self, *_):
        assert self.is_gathered

    def forward(self, *inputs, **options):
        self.is_gathered = True
        try:
            return self.module(*inputs, **options)
        finally:
            self.is_gathered = False


@pytest.mark.parametrize("build, loss_of", BOTH)
def test_a_sharded_layer_reads_and_computes_with_gathered_parameters(build, loss_of, monkeypatch):
    plain = build().train()
    monkeypatch.setattr(fairseq_layers, "fsdp_wrap", lambda layer, **_: Gathering(layer))
    sharded = build().train()
    assert all(isinstance(layer, Gathering) for layer in sharded.decoder.layers)
    (loss, gradients), (again, others) = (loss_and_gradients(loss_of, x) for x in (plain, sharded))
    assert_close(again, loss)
    for name, gradient in others.items():
        assert_close(gradient, gradients[name.replace(".module.", ".")])


@pytest.mark.parametrize("build, loss_of", BOTH)
def test_a_copy_of_a_checkpointed_model_is_a_model_of_its_own(build, loss_of):
    model = build(checkpoint_activations=True).train()
    before, _ = loss_and_gradients(loss_of, model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.decoder.parameters():
            parameter.zero_()
    assert_close(loss_and_gradients(loss_of, model)[0], before)
    assert abs(loss_and_gradients(loss_of, other)[0] - before) > 1e-3


def test_a_recomputation_keeps_only_the_inputs_that_checkpointing_stores():
    """With --offload-activations, these are copies on the CPU, and the original tensors are freed."""
    mask = torch.zeros(2, 3, dtype=torch.bool)
    kept = weakref.ref(mask)
    tensors, rebuild = flatten_tensors((Source(mask, mask), None, 5))
    assert len(tensors) == 1
    del mask, tensors
    assert kept() is None
    other = torch.ones(1)
    source, *others = rebuild([other])
    assert source.padding_mask is source.packed_padding_mask is other and others == [None, 5]
