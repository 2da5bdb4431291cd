"""What `paceline distill` runs: the one module of that command that loads torch."""

import torch
from transformers.utils import logging as transformers_logging

from paceline.distill.chats import NoTemplate
from paceline.distill.corpus import OtherCorpus
from paceline.distill.recipe import Outcome, Plan, TooFewAnswers, Watch, distill
from paceline.distill.student import Keep, Unsupported
from paceline.model.load import LoadError

__all__ = ["FAILURES", "Keep", "Plan", "distilled"]

# What is told in a line.
FAILURES = (LoadError, NoTemplate, OtherCorpus, TooFewAnswers, Unsupported)


def distilled(plan: Plan, watch: Watch, threads: int) -> Outcome:
    """Raises one of FAILURES."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads)
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise LoadError("this machine has no CUDA device that torch can use")
    return distill(plan, watch)
