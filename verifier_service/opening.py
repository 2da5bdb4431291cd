"""The beginning of a sequence: what a checked request turns into.

Knows no queue and no step.
"""

import time

from paceline.lookup.confidence import Confidences
from paceline.model.cache import BLOCK_TOKENS
from paceline.model.engine import LanguageModel
from paceline.params import SamplingMode
from paceline.sampling import SamplingState
from verifier_service.config import VerifierSettings
from verifier_service.mailbox import Mailbox
from verifier_service.sequence import Request, Sink, VerifierSequence
from verifier_service.sources import Sources, Stores

# A drafter may run so many blocks ahead: one that stands as a whole leaves some for the next.
AHEAD = 2


def new_sequence(request: Request, sink: Sink, vocab_size: int) -> VerifierSequence:
    """A sequence that `equip` makes ready to run; on any thread."""
    token_ids = [*request.prompt, *request.generated]
    return VerifierSequence(
        request=request,
        mailbox=Mailbox(
            len(token_ids),
            vocab_size,
            AHEAD * request.max_draft_tokens,
            request.seed if request.params.mode is SamplingMode.REJECTION else None,
        ),
        sink=sink,
        admitted_ns=time.monotonic_ns(),
        admitted_unix_ns=time.time_ns(),
        token_ids=token_ids,
    )


def equip(
    sequence: VerifierSequence,
    model: LanguageModel,
    settings: VerifierSettings,
    stores: Stores,
    confidences: Confidences,
) -> None:
    """Sampling state and draft sources. A whole vocabulary's tensors: on the model's thread."""
    request = sequence.request
    sequence.state = SamplingState(
        request.params,
        request.seed,
        request.prompt,
        request.generated,
        vocab_size=model.vocab_size,
        end_token_ids=() if request.params.ignore_eos else model.eos_token_ids,
    )
    if request.params.mode is SamplingMode.COUPLED and request.max_tree_tokens > 0:
        sequence.sources = Sources(
            settings.local_sources,
            stores,
            prompt=request.prompt,
            token_ids=sequence.token_ids,
            params=request.params,
            seed=request.seed,
            branch_block=BLOCK_TOKENS,
            tenant=request.tenant,
            keep=request.keep,
            confidences=confidences,
        )
