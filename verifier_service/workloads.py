"""Workloads: what the sequences that bear one label teach those to come.

Everything of a workload that outlives its answers, but the acceptance of drafters (acceptance.py):
the verdict on its drafter, how often which kind of guess is right, what asking for guesses brings.
Numbers only, no text. Pure.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from paceline.lookup.confidence import Confidences
from paceline.lookup.priors import GREEDY, SAMPLED
from verifier_service.exposure import Exposure
from verifier_service.looking import new_hope
from verifier_service.shrunk import Pool
from verifier_service.verdict import Verdict

_MAX_LABELS = 64
# Priors were measured on prompts asked twice; of all guesses at new ones so many are right for each
# that they promise (docs/log.md).
_TRUST = 0.8
# Guesses of all answers fade by this.
_FADE = 0.998


@dataclass
class Workload:
    """One label."""

    verdict: Verdict = field(default_factory=Verdict)
    # Of a step, in microseconds; and of asking, in tokens.
    gain: Pool = field(default_factory=Pool)
    exposure: Exposure = field(default_factory=Exposure)
    hope: Pool = field(default_factory=new_hope)
    # Greedy and sampled answers have no kind of guess in common but what a drafter sent.
    confidences: Confidences = field(
        default_factory=lambda: Confidences({**GREEDY, **SAMPLED}, fade=_FADE, trust=_TRUST)
    )


class Workloads:
    """By label. Labels come from clients: the one used longest ago is forgotten."""

    def __init__(self) -> None:
        self._workloads: OrderedDict[str, Workload] = OrderedDict()

    def new_drafter(self) -> None:
        """What was found out of the last one says nothing to those that begin from now on."""
        for workload in self._workloads.values():
            workload.verdict = Verdict()

    def of(self, label: str) -> Workload:
        workload = self._workloads.setdefault(label, Workload())
        self._workloads.move_to_end(label)
        if len(self._workloads) > _MAX_LABELS:
            self._workloads.popitem(last=False)
        return workload
