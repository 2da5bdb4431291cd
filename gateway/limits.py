"""What one tenant may use: tokens per second. Pure; the clock is passed in."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.keys import Tenant


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float


class TokenRates:
    """A bucket of tokens per tenant with a rate.

    A request takes its estimate at once and gives back, or takes as well, what it differed by; so
    no number of requests at the same time gets more than the rate allows.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, tenant: Tenant, tokens: float) -> float:
        """How long until the bucket holds that much; 0: it does. More than fits counts as full."""
        if not tenant.tokens_per_s:
            return 0.0
        missing = min(tokens, tenant.burst_tokens) - self._filled(tenant).level
        return max(0.0, missing / tenant.tokens_per_s)

    def take(self, tenant: Tenant, tokens: float) -> float:
        """Takes what `wait_s` waited for; returns it, for `settle`."""
        taken = min(tokens, tenant.burst_tokens)
        self._change(tenant, -taken)
        return taken

    def settle(self, tenant: Tenant, taken: float, tokens: float) -> None:
        """The request took so many. The level may go below zero; what comes next waits for it."""
        self._change(tenant, taken - tokens)

    def _change(self, tenant: Tenant, tokens: float) -> None:
        if tenant.tokens_per_s:
            bucket = self._filled(tenant)
            bucket.level = min(bucket.level + tokens, tenant.burst_tokens)

    def _filled(self, tenant: Tenant) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(tenant.name, _Bucket(tenant.burst_tokens, now))
        grown = bucket.level + (now - bucket.at_s) * tenant.tokens_per_s
        bucket.level, bucket.at_s = min(grown, tenant.burst_tokens), now
        return bucket
