"""distribution/...: answers with speculation on have the law of answers with speculation off.

Only three token ids may be chosen, and the prompt holds every pair of them. So any drafter finds
something to draft, whatever the model, and the few possible answers are all seen often. Their law
is the model's, at a temperature that makes all of them likely.
"""

from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from itertools import pairwise

from paceline.certify.asker import Asker, Reply
from paceline.certify.check import Check, refused, unless_refused
from paceline.certify.statistics import MIN_OCCURRENCES, g_test, mean_test
from paceline.events import DraftPolicy, Request
from paceline.lookup.prompt_lookup import PromptLookup
from paceline.params import SamplingMode, SamplingParams, Speculation
from paceline.server import Refusal

MIN_P_VALUE = 1e-4
AT_ONCE = 16
# The short sequences that are compared as a whole; an answer is longer: blocks reach beyond them.
_LENGTHS = (1, 3)
_MAX_TOKENS = 10
# Blocks of one token end in a bonus token often, longer ones test block verification.
_DRAFT_TOKENS = (1, 3)
_TEMPERATURE = 3.0
_BIAS = 100.0


async def distribution_checks(
    asker: Asker, *, samples: int, seed: int, allow_no_drafter: bool
) -> list[Check]:
    """One check for each sampling mode, `samples` answers on each side. Raises Unreachable."""
    names = {mode: f"distribution/{mode.name.lower()}" for mode in SamplingMode}

    def ask(
        stage: str, mode: SamplingMode, speculation: Speculation, side: int
    ) -> Awaitable[list[Reply]]:
        # Every side has its own seeds: the samples must be independent.
        seeds = [(seed + side * samples + number) % 2**64 for number in range(samples)]
        requests = _requests(asker.model.vocab_size, seeds, mode, speculation)
        return asker.ask_all(stage, requests, at_once=AT_ONCE, in_waves=True)

    async def check(name: str, mode: SamplingMode) -> Check:
        speculative = await ask(name, mode, Speculation.FIXED, mode)
        prompt = pairs(allowed(asker.model.vocab_size))
        return judge(name, prompt, plain, speculative, allow_no_drafter)

    try:
        plain = await ask("distribution, speculation off", SamplingMode.COUPLED, Speculation.OFF, 0)
    except Refusal as refusal:
        return [refused(name, refusal) for name in names.values()]
    return [await unless_refused(name, check(name, mode)) for mode, name in names.items()]


def allowed(vocab_size: int) -> list[int]:
    """The ids that may be chosen."""
    return [vocab_size * quarter // 4 for quarter in (1, 2, 3)]


def pairs(token_ids: Sequence[int]) -> list[int]:
    """A sequence that holds every pair of the ids once: a de Bruijn cycle, its first id again."""
    cycle: list[int] = []
    for index, token_id in enumerate(token_ids):
        cycle.append(token_id)
        for later in token_ids[index + 1 :]:
            cycle += [token_id, later]
    return [*cycle, token_ids[0]]


def _requests(
    vocab_size: int, seeds: Sequence[int], mode: SamplingMode, speculation: Speculation
) -> list[Request]:
    token_ids = allowed(vocab_size)
    params = SamplingParams(
        mode=mode,
        temperature=_TEMPERATURE,
        top_k=len(token_ids),
        logit_bias=dict.fromkeys(token_ids, _BIAS),
        max_tokens=_MAX_TOKENS,
        ignore_eos=True,
    )
    return [
        Request(
            prompt=pairs(token_ids),
            params=params,
            seed=seed,
            draft=DraftPolicy(speculation, _DRAFT_TOKENS[number % len(_DRAFT_TOKENS)]),
        )
        for number, seed in enumerate(seeds)
    ]


def judge(
    name: str,
    prompt: Sequence[int],
    plain: Sequence[Reply],
    speculative: Sequence[Reply],
    allow_no_drafter: bool,
) -> Check:
    """Compares the first token, the first three, and how often tokens and pairs of them come.

    What a lookup would draft is compared as well: an unsound verifier lets that pass too often.
    """
    sides = [[reply.token_ids for reply in replies] for replies in (plain, speculative)]
    heads = {length: g_test(*(_heads(side, length) for side in sides)) for length in _LENGTHS}
    p_values = {f"a head of {length} tokens": test.p_value for length, test in heads.items()}
    counters = [[_phrases(token_ids) for token_ids in side] for side in sides]
    for phrase in _frequent(counter for side in counters for counter in side):
        counts = [[counter[phrase] for counter in side] for side in counters]
        p_values[f"how often {' '.join(map(str, phrase))} comes"] = mean_test(*counts)
    hits = [[num_foreseen(prompt, token_ids) for token_ids in side] for side in sides]
    if sum(map(sum, hits)) >= MIN_OCCURRENCES:
        p_values["how often a lookup is right"] = mean_test(*hits)
    least = min(p_values, key=p_values.__getitem__)
    # Of many comparisons the least likely is the less surprising (Bonferroni).
    p_value = min(1.0, p_values[least] * len(p_values))
    num_drafted = sum(reply.num_drafted for reply in speculative)
    problem = ""
    if p_value <= MIN_P_VALUE:
        problem = "not the distribution of plain decoding: "
    elif heads[_LENGTHS[-1]].num_cells == 1:
        problem = "the answers do not vary, so nothing was compared: "
    elif not num_drafted and not allow_no_drafter:
        problem = "no draft token was verified, so nothing was compared: "
    return Check(
        name,
        not problem,
        f"{problem}p = {p_value:.2g} in {len(p_values)} comparisons, the least likely is {least}; "
        f"{len(speculative)} answers against {len(plain)}, {num_drafted} draft tokens verified",
    )


def _heads(side: Sequence[Sequence[int]], length: int) -> list[tuple[int, ...]]:
    return [tuple(token_ids[:length]) for token_ids in side]


def num_foreseen(prompt: Sequence[int], token_ids: Sequence[int]) -> int:
    """Tokens of an answer that a lookup in the prompt and the answer so far foresees."""
    lookup = PromptLookup()
    lookup.append(prompt)
    num_hits = 0
    for token_id in token_ids:
        num_hits += lookup.propose(1) == [token_id]
        lookup.append([token_id])
    return num_hits


def _phrases(token_ids: Sequence[int]) -> Counter[tuple[int, ...]]:
    """How often every token comes, and every pair of neighbours."""
    return Counter[tuple[int, ...]]([*((i,) for i in token_ids), *pairwise(token_ids)])


def _frequent(counters: Iterable[Counter[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """What comes often enough in all of them to be compared."""
    total: Counter[tuple[int, ...]] = Counter()
    for counter in counters:
        total.update(counter)
    return sorted(phrase for phrase, count in total.items() if count >= MIN_OCCURRENCES)
