"""fairseq is missing, too old, or of another version."""

import importlib.util
import sys

import pytest

import fairseq
from luna_fairseq.engine.versions import is_at_least
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.requirements import require_fairseq

ENGINE = "fairseq-fixed==0.12.3.1" if sys.version_info >= (3, 11) else "fairseq==0.12.2"


def test_a_missing_fairseq_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirementError) as error:
        require_fairseq()
    assert str(error.value).endswith(f"pip install {ENGINE}") and "\n" not in str(error.value)


@pytest.mark.parametrize("version", ["0.10.2", "0.9", "0.11.0a0"])
def test_a_fairseq_that_is_too_old_is_refused(version, monkeypatch):
    monkeypatch.setattr(fairseq, "__version__", version)
    with pytest.raises(InputError, match=f"{version}.*pip install {ENGINE}$"):
        require_fairseq()


@pytest.mark.parametrize("version", ["0.12", "0.12.2", "0.12.3.1", "1.0.0a0+5ec3a27", "our-fork"])
def test_other_versions_are_accepted(version, monkeypatch):
    monkeypatch.setattr(fairseq, "__version__", version)
    require_fairseq()


def test_versions_are_compared_as_numbers(monkeypatch):
    monkeypatch.setattr(fairseq, "__version__", "2.13.0+cpu")
    assert (
        is_at_least("fairseq", 2, 6) and not is_at_least("fairseq", 3) and not is_at_least("fairseq", 2, 14)
    )
