"""What drafting took and gave, by tenant. Labels come from clients: their number is bounded."""

from dataclasses import dataclass

_MAX_TENANTS = 256
# All tenants past the limit.
REST = "*"


@dataclass(slots=True)
class Drafting:
    """Sums over a tenant's rounds."""

    draft_us: int = 0
    wait_us: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


class Tenants:
    """Sums of each tenant that drafts were verified, or waited, for."""

    def __init__(self) -> None:
        self.drafting: dict[str, Drafting] = {}

    def add(
        self, tenant: str, *, draft_us: int, wait_us: int, num_drafted: int, num_accepted: int
    ) -> None:
        if not (num_drafted or wait_us):
            return
        if tenant not in self.drafting and len(self.drafting) >= _MAX_TENANTS:
            tenant = REST
        sums = self.drafting.setdefault(tenant, Drafting())
        sums.draft_us += draft_us
        sums.wait_us += wait_us
        sums.num_drafted += num_drafted
        sums.num_accepted += num_accepted
