"""Who goes next: shares within a bound, no starvation, priorities that age, rates that hold."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fairness import PRIORITY_S, FairQueue, Waiting, rank
from gateway.keys import Tenant
from gateway.limits import TokenRates

COSTS = st.integers(1, 1000)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 10.0])


def request(tenant: str, cost: float, weight: float = 1.0, rank_: float = 0.0) -> Waiting:
    return Waiting(tenant, weight, cost, rank_)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.dictionaries(st.sampled_from("abcd"), WEIGHTS, min_size=2),
    costs=st.data(),
    num_rounds=st.integers(1, 60),
)
def test_tenants_that_wait_get_their_shares_within_one_request_each(weights, costs, num_rounds):
    queue = FairQueue()
    served: Counter[str] = Counter()
    largest: Counter[str] = Counter()

    def ask(tenant: str) -> None:
        cost = costs.draw(COSTS)
        largest[tenant] = max(largest[tenant], cost)
        queue.push(request(tenant, cost, weights[tenant]))

    for tenant in weights:
        ask(tenant)
        ask(tenant)
    for _ in range(num_rounds):
        waiting = queue.pop()
        served[waiting.tenant] += waiting.cost
        queue.settle(waiting, waiting.cost)
        ask(waiting.tenant)
        for a in weights:
            for b in weights:
                gap = served[a] / weights[a] - served[b] / weights[b]
                assert gap <= largest[a] / weights[a] + largest[b] / weights[b] + 1e-6


@settings(max_examples=60, deadline=None)
@given(flood=st.lists(COSTS, min_size=1, max_size=300), cost=COSTS)
def test_a_newcomer_waits_for_no_more_than_one_request_of_a_flood(flood, cost):
    queue = FairQueue()
    for each in flood:
        queue.push(request("flood", each))
    for _ in range(len(flood) // 2):
        waiting = queue.pop()
        queue.settle(waiting, waiting.cost)
    queue.push(request("new", cost))
    first_two = [queue.pop(), queue.pop() if len(queue) else None]
    assert "new" in {waiting.tenant for waiting in first_two if waiting}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-10, 10)), min_size=1, max_size=60))
def test_priority_overtakes_for_a_bounded_time(arrivals):
    arrivals = sorted(arrivals)
    queue = FairQueue()
    for at_s, priority in arrivals:
        queue.push(request("a", 1, rank_=rank(at_s, priority)))
    order = [queue.pop().rank for _ in arrivals]
    assert order == sorted(order)
    # Nobody who arrives 20 levels' worth later goes first, whatever the two priorities.
    assert rank(0, -10) <= rank(20 * PRIORITY_S, 10)
    assert rank(0, 1) < rank(0, 0) < rank(PRIORITY_S + 1, 1)


def test_what_was_not_used_is_no_credit_and_what_was_not_taken_is_given_back():
    queue = FairQueue()
    for _ in range(50):
        queue.push(request("busy", 100))
    for _ in range(20):
        queue.settle(queue.pop(), 100)
    for _ in range(10):
        queue.push(request("late", 100))
    tenants = [queue.pop().tenant for _ in range(10)]
    assert 4 <= tenants.count("late") <= 6
    # An estimate of 1000 that came to 10 costs 10.
    queue = FairQueue()
    for tenant in ("short", "long"):
        for _ in range(40):
            queue.push(request(tenant, 1000 if tenant == "short" else 10))
    counts: Counter[str] = Counter()
    for _ in range(40):
        waiting = queue.pop()
        counts[waiting.tenant] += 1
        queue.settle(waiting, 10)
    assert abs(counts["short"] - counts["long"]) <= 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["push", "remove", "pop"]))))
def test_the_count_of_those_who_wait_is_right_whoever_leaves(steps):
    queue = FairQueue()
    waiting: list[Waiting] = []
    for tenant, step in steps:
        if step == "push":
            waiting.append(request(tenant, 5))
            queue.push(waiting[-1])
        elif step == "remove" and waiting:
            queue.remove(waiting.pop())
        elif step == "pop" and (popped := queue.pop()):
            waiting = [each for each in waiting if each is not popped]
            queue.settle(popped, 5)
        assert len(queue) == len(waiting)
        assert queue.num_tenants == len({each.tenant for each in waiting})
        head = queue.peek()
        assert (head is None) == (not waiting)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.floats(1, 5000), st.floats(0, 1)), min_size=1, max_size=60
    )
)
def test_a_rate_holds_whatever_the_requests(requests):
    clock = Clock()
    rates = TokenRates(clock)
    tenant = Tenant("a", tokens_per_s=100, burst_tokens=1000)
    used = 0.0
    for pause_s, estimate, part in requests:
        clock.now += pause_s
        wait_s = rates.wait_s(tenant, estimate)
        clock.now += wait_s
        assert rates.wait_s(tenant, estimate) == pytest.approx(0, abs=1e-6)
        taken = rates.take(tenant, estimate)
        rates.settle(tenant, taken, estimate * part)
        used += estimate * part
        # What was used is what the rate gave, the burst, and at most one request too large for it.
        assert used <= 100 * clock.now + 1000 + 5000 + 1e-6


def test_a_tenant_without_a_rate_never_waits():
    rates = TokenRates(Clock())
    assert rates.wait_s(Tenant("a"), 1e9) == 0
    assert rates.take(Tenant("a"), 1e9) == 0
