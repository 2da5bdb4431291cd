"""One store per tenant, so that nothing learnt from one tenant is ever proposed to another."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_TENANTS = 8


class Tenants(Generic[T]):
    """Stores by tenant; beyond the bound the tenant not seen for longest is forgotten."""

    def __init__(self, make: Callable[[], T], max_tenants: int = MAX_TENANTS) -> None:
        self._make = make
        self._max_tenants = max_tenants
        self._stores: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._stores)

    def of(self, tenant: str) -> T:
        """The tenant's store, made on first use."""
        store = self._stores.pop(tenant, None)
        if store is None:
            store = self._make()
        self._stores[tenant] = store
        if len(self._stores) > self._max_tenants:
            del self._stores[next(iter(self._stores))]
        return store
