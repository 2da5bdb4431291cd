"""A verifier's gauges and counters, asked of the verifier itself, as dataclasses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from paceline.access import Access
from paceline.codec import totals_from_pb
from paceline.roles import VERIFIER, server_name
from paceline.rounds import SpeculationTotals
from paceline.v1 import verifier_pb2, verifier_pb2_grpc

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class DrafterState:
    address: str
    state: str
    drafter: str
    num_sequences: int


@dataclass(frozen=True, slots=True)
class TenantDrafting:
    """What drafting for a tenant took and gave."""

    tenant: str
    draft_us: int
    wait_us: int
    num_drafted: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    address: str
    num_running: int
    num_waiting: int
    num_steps: int
    totals: SpeculationTotals
    drafters: Sequence[DrafterState]
    tenants: Sequence[TenantDrafting]


async def verifier_status(address: str) -> VerifierStatus | None:
    """None when no verifier answers at the address."""
    access = replace(Access.from_environment(), server_name=server_name(VERIFIER))
    async with access.open_channel(address) as channel:
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            message = await stub.GetStatus(verifier_pb2.GetStatusRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
    return VerifierStatus(
        address=address,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_steps=message.num_steps,
        totals=totals_from_pb(message.totals),
        drafters=[
            DrafterState(d.address, d.state, d.drafter, d.num_sequences) for d in message.drafters
        ],
        tenants=[
            TenantDrafting(t.tenant, t.draft_us, t.wait_us, t.num_drafted, t.num_accepted)
            for t in message.tenants
        ],
    )
