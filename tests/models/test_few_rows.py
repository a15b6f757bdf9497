"""The output projection of a few rows: the same numbers, for inference alone."""

import pytest
import torch
from tiny_models import language_model as tiny_model

from luna_fairseq.models import few_rows


@pytest.mark.parametrize("least, kind", [(1, few_rows.FewRows), (few_rows.LEAST_WEIGHTS, torch.nn.Linear)])
def test_a_large_one_gives_the_same_numbers_for_any_number_of_rows(least, kind, monkeypatch):
    monkeypatch.setattr(few_rows, "LEAST_WEIGHTS", least)
    model = tiny_model(torch.float32).eval()
    projection = model.decoder.output_projection
    inputs = [torch.randn(*shape, projection.in_features) for shape in ((1,), (5,), (2, 3, 1), (9,))]
    with torch.no_grad():
        expected = [projection(x) for x in inputs]
        model.make_generation_fast_()
        projection = model.decoder.output_projection
        assert type(projection) is kind
        for x, y in zip(inputs, expected):
            torch.testing.assert_close(projection(x), y)
