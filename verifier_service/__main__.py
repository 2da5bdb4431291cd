"""python -m verifier_service: settings in, service up."""

import gc
import importlib
import os

from paceline.server import set_up_logging
from verifier_service.config import VerifierSettings


def main() -> None:
    # What a start makes stays: looking for garbage in it takes a good part of the start. app.py
    # resumes.
    gc.disable()
    settings = VerifierSettings.load()
    set_up_logging(settings.log_level)
    # Read when torch is loaded. A bounded spin: without one every small layer waits for a wake-up,
    # with an endless one two processes on the same cores stall each other (docs/log.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    importlib.import_module("verifier_service.app").main(settings)


if __name__ == "__main__":
    main()
