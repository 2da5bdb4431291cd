"""Which drafter the settings name."""

import importlib

from drafter_service.config import DrafterSettings
from drafter_service.drafter import Drafter
from drafter_service.lookup import PromptLookupDrafter
from drafter_service.past_answers import PastAnswersDrafter
from drafter_service.random import RandomDrafter


def open_drafter(settings: DrafterSettings) -> Drafter:
    """The drafter to serve; a model is loaded here."""
    if settings.drafter == "lookup":
        return PromptLookupDrafter()
    if settings.drafter == "past_answers":
        return PastAnswersDrafter()
    if settings.drafter == "random":
        return RandomDrafter()
    # By name, at run time: it loads torch, and without it the others start in a second.
    model = importlib.import_module("drafter_service.model")
    drafter: Drafter = model.open_model_drafter(
        settings.model,
        dtype=settings.dtype,
        max_sequences=settings.max_sequences,
        numerics=settings.numerics,
        threads=settings.threads,
    )
    return drafter
