"""Criterions that fairseq does not have; one file registers one."""

from luna_fairseq.criterions.lra_cross_entropy import LRACrossEntropyCriterion

__all__ = ["LRACrossEntropyCriterion"]
