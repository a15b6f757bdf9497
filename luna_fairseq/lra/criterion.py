"""Cross entropy of a class for each sequence, and accuracy."""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from omegaconf import II
from torch import Tensor
from torch.nn import functional as F

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics


@dataclass
class LRACrossEntropyConfig(FairseqDataclass):
    """Options of ``--criterion lra_cross_entropy``."""

    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("lra_cross_entropy", dataclass=LRACrossEntropyConfig)
class LRACrossEntropyCriterion(FairseqCriterion):
    """Summed over sequences and divided by their number (``--sentence-avg``) or by that of all their tokens.

    ``--best-checkpoint-metric accuracy`` keeps the checkpoint of the highest accuracy, in per cent.
    """

    def __init__(self, task: Any, sentence_avg: bool):
        super().__init__(task)
        self.sentence_avg = sentence_avg

    def forward(
        self, model: Any, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """
        Args:
            model: gives logits [B, classes] for ``sample["net_input"]``
            sample: a batch of the task, with ``target`` [B, 1]
            reduce: sum over the batch (default: True)

        Returns:
            loss in nats, the number it is to be divided by, and what is logged
        """
        logits = model(**sample["net_input"]).float()
        target = sample["target"].view(-1)
        loss = F.cross_entropy(logits, target, reduction="sum" if reduce else "none")
        sample_size = target.numel() if self.sentence_avg else sample["ntokens"]
        log = {
            "loss": loss.detach(),
            "ncorrect": logits.argmax(dim=-1).eq(target).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": target.numel(),
            "sample_size": sample_size,
        }
        return loss, sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict[str, Any]]) -> None:
        """Loss in bits, and accuracy in per cent, over batches and devices."""
        names = ("loss", "ncorrect", "nsentences", "sample_size")
        loss, right, sentences, size = (sum(log.get(name, 0) for log in logging_outputs) for name in names)
        metrics.log_scalar("loss", loss / size / math.log(2), size, round=3)
        metrics.log_scalar("accuracy", 100.0 * right / sentences, sentences, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
