"""Cross-entropy loss for sequence classification, with accuracy as a metric."""

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
    """Options of ``--criterion lra_cross_entropy``, the loss for Long Range Arena."""

    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("lra_cross_entropy", dataclass=LRACrossEntropyConfig)
class LRACrossEntropyCriterion(FairseqCriterion):
    """Cross-entropy loss for sequence classification, ``--criterion lra_cross_entropy``.

    The loss is summed over the sequences of a batch. With ``--sentence-avg`` the sum is divided by the number
    of sequences, otherwise by the number of tokens. To keep the checkpoint with the highest accuracy, pass
    ``--best-checkpoint-metric accuracy --maximize-best-checkpoint-metric`` to fairseq-train.
    """

    def __init__(self, task: Any, sentence_avg: bool):
        super().__init__(task)
        self.sentence_avg = sentence_avg

    def forward(
        self, model: Any, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """Return the summed loss of a batch in nats, the sample size that divides it, and values to log.

        The model returns logits [B, K] for B sequences and K classes. ``sample["target"]`` [B, 1] contains
        the correct classes. If ``reduce`` is False, the loss has shape [B].
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
        """Log the mean loss in bits and the accuracy in percent, over all batches and processes."""
        names = ("loss", "ncorrect", "nsentences", "sample_size")
        loss, correct, sentences, size = (sum(log.get(name, 0) for log in logging_outputs) for name in names)
        metrics.log_scalar("loss", loss / size / math.log(2), size, round=3)
        metrics.log_scalar("accuracy", 100.0 * correct / sentences, sentences, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True, so that fairseq sums the logged values across devices."""
        return True
