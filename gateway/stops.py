"""Stop strings: an answer's text ends before the first of them. Pure; knows no tokens."""

from collections.abc import Sequence


class StopStrings:
    """Passes text through up to a stop string, however it is cut into pieces.

    Holds back the longest end of the text that could still become a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""

    def push(self, text: str) -> str:
        """The text that is certain now. Sets `found` when a stop string is complete.

        Of several that one piece completes, the one that begins first counts.
        """
        self._held += text
        starts = [(self._held.find(stop), stop) for stop in self._stops]
        starts = [(start, stop) for start, stop in starts if start >= 0]
        if starts:
            start, self.found = min(starts, key=lambda pair: pair[0])
            certain, self._held = self._held[:start], ""
        else:
            start = self._first_possible()
            certain, self._held = self._held[:start], self._held[start:]
        return certain

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _first_possible(self) -> int:
        """Where the earliest stop string that may still be completed begins."""
        first = len(self._held)
        for stop in self._stops:
            start = self._held.find(stop[0], max(0, len(self._held) - len(stop) + 1))
            while 0 <= start < first:
                if stop.startswith(self._held[start:]):
                    first = start
                    break
                start = self._held.find(stop[0], start + 1)
        return first
