"""Which ranks make the others wait, by how much, since when, and how sure is that? The one judge of both sides.

Given is each rank's own time per step: its time until it arrived at what the others waited for. After a collective all
ranks have the same step time, so lateness shows in own time only.

    blocks      sixty stretches or so of steps of equal length, each with the mean of its middle half
    reference   the ranks that are not late: the fastest, and upwards every rank that is not clearly slower than the
                median of those below it. So late ranks do not hide each other, however many they are
    lateness    own time less the reference's median in the same steps
    late        by 10 % of the reference's own time, beyond chance and beyond what reference ranks differ by, in both
                halves of the steps; in some steps only where these are more than chance gives one rank of the job

Chance accuses any rank of a healthy run at most once in a hundred runs. The noise is the run's own (differences
between blocks, their autocorrelation, differences between ranks), and the limit is shared by all pairs of ranks that
are compared. A score of 2 is at that limit. Standard library only.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import comb, exp, inf, isnan, lgamma, log, log1p, nan, sqrt
from typing import NamedTuple

from stepscope.contract.student import t_quantile

DEFAULT_WINDOW_STEPS = 100
ALL_STEPS = 1 << 40
DEFAULT_SCORE = 2.0
DEFAULT_SLOWDOWN = 1.10
# own times of equal ranks differ by this share of a step at least, so a smaller spread is luck
NOISE_SHARE = 0.02
# in which share of healthy runs any rank may be named
FALSE_ALARMS = 0.01
_BLOCKS = 60
# below, the median counts, and lateness that lasts is in each of them
_FEW_STEPS = 10
# of the lateness: what each half of the steps has to show
_IN_EACH_HALF = 0.4
_NOISE_SIGMAS = 3.0
# how sure a rank's own blocks have to be where those of the others are
_AGREES = 0.95
# of the steps: a rank that is late in fewer costs the mean of all, not what a usual step has
_ALWAYS = 0.9
# rank-steps in which one hiccup of a healthy rank is expected, next to what the run shows
_STEPS_PER_HICCUP = 20
# of neighbouring blocks, before they say: worth so many of them
_CORRELATION, _EXPECTED = 0.5, 4
_ROUNDING = 1e-9

Own = Mapping[int, Sequence[float]]


class LateRank(NamedTuple):
    """One rank compared with the ranks that are not late."""

    rank: int
    is_late: bool
    #: own time beyond that of the ranks that are not late, per step; negative where it is faster
    late_ns: float
    #: interval of the lateness
    low_ns: float
    high_ns: float
    #: own time / that of the ranks that are not late
    slowdown: float
    #: 2 where chance gives as much in one of a hundred healthy runs
    score: float
    #: median own time of the rank, and of the ranks that are not late
    own_ns: float
    others_ns: float
    steps_late: int
    num_steps: int
    #: place of the first late step among those given; None for a rank that is not late
    since: int | None

    @property
    def persistent(self) -> bool:
        """Whether it is late in most steps, not in some only."""
        return self.steps_late > self.num_steps / 2

    @property
    def own_ms(self) -> float:
        return self.own_ns / 1e6

    @property
    def late_ms(self) -> float:
        return self.late_ns / 1e6

    @property
    def straggler(self) -> bool:
        return self.is_late


def late_ranks(judged: Iterable[LateRank]) -> list[LateRank]:
    """Return the late ones, the latest first."""
    return sorted((one for one in judged if one.is_late), key=lambda one: -one.late_ns)


class StepTimes(NamedTuple):
    """The logged steps of one rank as columns; waits are NaN where they were not measured."""

    step: Sequence[int]
    dur_ns: Sequence[float]
    #: for the others' gradients on the host
    host_wait_ns: Sequence[float]
    #: in collectives on the device, transfers included
    device_wait_ns: Sequence[float]
    #: whether a step is one of training after its start, without the profiler
    counts: Sequence[bool]


def own_times(
    by_rank: Mapping[int, StepTimes], *, window_steps: int = DEFAULT_WINDOW_STEPS
) -> tuple[list[int], dict[int, list[float]]] | None:
    """Return the newest steps that hold so many known own times of every rank, and own times by rank; None for ranks
    that cannot be compared.

    Own time is the step less the wait for the others: on the host, else with NCCL on the device, where the least wait
    of all is the transfer. Of short steps waits are measured in some only: in the others own time is unknown. A rank
    that never waits has none to take off.
    """
    on_host = any(_some(times.host_wait_ns) for times in by_rank.values())
    on_device = {_some(times.device_wait_ns) for times in by_rank.values()}
    if not on_host and len(on_device) > 1:  # ranks read their recorders at different times
        return None
    waits = {rank: times.host_wait_ns if on_host else times.device_wait_ns for rank, times in by_rank.items()}
    least = min((x for wait in waits.values() for x in wait if not isnan(x)), default=0.0)
    transfer = 0.0 if on_host else least
    own = {rank: _own(times, waits[rank], transfer) for rank, times in by_rank.items()}
    if not all(own.values()):
        return None
    first = max(min(pairs[-window_steps:][0][0] for pairs in own.values()), max(pairs[0][0] for pairs in own.values()))
    last = min(times.step[-1] for times in by_rank.values())
    steps = sorted({step for pairs in own.values() for step, _ in pairs if first <= step <= last})
    known = {rank: dict(pairs) for rank, pairs in own.items()}
    return steps, {rank: [one.get(step, nan) for step in steps] for rank, one in known.items()}


def _some(waits: Sequence[float]) -> bool:
    return any(not isnan(x) for x in waits)


def _own(times: StepTimes, waits: Sequence[float], transfer: float) -> list[tuple[int, float]]:
    waits = waits if _some(waits) else [0.0] * len(waits)
    some_count = any(times.counts)
    return [
        (step, max(dur - wait + transfer, 0.0))
        for step, dur, wait, counts in zip(times.step, times.dur_ns, waits, times.counts, strict=True)
        if not isnan(wait) and (counts or not some_count)
    ]


def lateness(own_ns: Own, *, threshold: float = DEFAULT_SCORE, slowdown: float = DEFAULT_SLOWDOWN) -> list[LateRank]:
    """Return every rank's lateness, by rank; empty where fewer than two have known own times.

    All ranks have the same steps in the same places; NaN is unknown.

    >>> judged = lateness({0: [10.0, 10.2, 9.9, 10.1], 1: [10.1, 10.0, 10.1, 10.0], 2: [14.1, 14.0, 14.2, 14.1]})
    >>> [one.rank for one in late_ranks(judged)]
    [2]
    """
    known = {rank: [x for x in times if not isnan(x)] for rank, times in sorted(own_ns.items())}
    known = {rank: times for rank, times in known.items() if times}
    if len(known) < 2:
        return []
    return _Judge(own_ns, known, strictness=max(threshold, _ROUNDING) / DEFAULT_SCORE, slowdown=slowdown).judged()


class _Reference:
    """The ranks that are not late, and their medians in each block and step, without the rank that is compared."""

    def __init__(self, judge: "_Judge", ranks: Sequence[int]) -> None:
        self.ranks = set(ranks)
        self._judge = judge
        self._blocks = [sorted(column) for column in zip(*(judge.blocks[rank] for rank in ranks), strict=True)]
        self._typical = sorted(judge.typical[rank] for rank in ranks)
        self._steps: list[list[float]] | None = None

    def add(self, rank: int) -> None:
        self.ranks.add(rank)
        insort(self._typical, self._judge.typical[rank])
        for column, value in zip(self._blocks, self._judge.blocks[rank], strict=True):
            insort(column, value)

    def level(self, rank: int) -> float:
        return _median_without(self._typical, self._judge.typical[rank] if rank in self.ranks else None)

    def beyond(self, rank: int) -> list[float]:
        """Return a rank's own time beyond the others' in each block."""
        mine, inside = self._judge.blocks[rank], rank in self.ranks
        columns = zip(mine, self._blocks, strict=True)
        return [x - _median_without(column, x if inside else None) for x, column in columns]

    def steps(self) -> list[list[float]]:
        """Return the sorted known own times of these ranks in each step."""
        if self._steps is None:
            rows = [self._judge.own[one] for one in sorted(self.ranks)]
            self._steps = [sorted(x for x in column if not isnan(x)) for column in zip(*rows, strict=True)]
        return self._steps

    def beyond_by_step(self, rank: int) -> list[float]:
        """Return own time beyond the others' in each known step, or beyond their usual one where that is unknown."""
        usual, inside, count = self.level(rank), rank in self.ranks, len(self.ranks)
        return [
            x - (_median_without(column, x if inside else None) if len(column) == count else usual)
            for x, column in zip(self._judge.own[rank], self.steps(), strict=True)
            if not isnan(x)
        ]

    def differences(self) -> float:
        """Return how far some rank may be from the others by what these differ by."""
        if len(self.ranks) < 4:
            return 0.0
        sigma = _mad_sigma([median(self._judge.blocks[rank]) for rank in self.ranks])
        return sigma * t_quantile(1 - 2 * FALSE_ALARMS / len(self._judge.blocks), inf)


class _Lasting(NamedTuple):
    late: float
    reach: float
    lasts: bool


class _Judge:
    def __init__(self, own: Own, known: Own, *, strictness: float, slowdown: float) -> None:
        fewest = min(map(len, known.values()))
        count = fewest // max(1, fewest // _BLOCKS)
        self.own = own
        self.blocks = {rank: _middle_means(times, count) for rank, times in known.items()}
        self.typical = {rank: median(times) for rank, times in known.items()}
        self._count, self._noise = count, _noise(self.blocks)
        self._strictness, self._share = strictness, slowdown - 1
        # Half of the chance is for lateness that lasts, shared by all ordered pairs; half for that in some steps,
        # shared by two references and the numbers of late ranks.
        self._chance = FALSE_ALARMS / 2 / (len(known) * (len(known) - 1))
        self._log_chance_of_some = log(FALSE_ALARMS / 4 / (len(known) - 1))

    def judged(self) -> list[LateRank]:
        reference = self._not_clearly_slower()
        some = self._late_in_some(reference) if len(reference.ranks) > 1 else {}
        if some:
            reference = _Reference(self, sorted(reference.ranks - set(some)))
        everyone_else = reference
        if len(reference.ranks) == 1 and len(self.blocks) > 1:  # the one that is left is early by the others' median
            everyone_else = _Reference(self, sorted(self.blocks))
        return [
            self._one(rank, everyone_else if rank in reference.ranks else reference, some.get(rank), reference)
            for rank in self.blocks
        ]

    def _not_clearly_slower(self) -> _Reference:
        centre = {rank: median(values) for rank, values in self.blocks.items()}
        first, *others = sorted(centre, key=lambda rank: centre[rank])
        reference = _Reference(self, [first])
        for rank in others:
            test = self._lasting(rank, reference)
            if self._is_enough(test.late, rank, reference) and test.late > test.reach and test.lasts:
                break
            reference.add(rank)
        return reference

    def _is_enough(self, late: float, rank: int, reference: _Reference) -> bool:
        return late >= (1 - _ROUNDING) * self._share * reference.level(rank)

    def _lasting(self, rank: int, reference: _Reference) -> _Lasting:
        late, level = reference.beyond(rank), reference.level(rank)
        n = len(late)
        if n < 2:  # one value per rank: only the differences between ranks say what chance gives
            each = [self.blocks[one][0] for one in reference.ranks - {rank}]
            error = max(_deviation(each), NOISE_SHARE * level) * sqrt(1 + 1 / len(each))
            reach = error * t_quantile(1 - 2 * self._chance, len(each) - 1) if len(each) > 2 else inf
            return _Lasting(late[0], self._strictness * reach, True)
        centre, error, df = _centre(late)
        independent = max(_independent(late), 2.0)
        lasting, least = sqrt(n / independent), NOISE_SHARE * level / sqrt(n)
        error = max(error * lasting, least)
        reach = error * t_quantile(1 - 2 * self._chance, df)
        if n < _FEW_STEPS and (others := self._noise_of_others(rank)) is not None:
            # A few steps of one rank show its noise badly: that of all others does better, where its own agrees.
            sigma, others_df = others
            of_others = max(sigma * sqrt((1 + 1.57 / len(reference.ranks)) / n) * lasting, least)
            reach = min(
                reach, max(error * t_quantile(_AGREES, df), of_others * t_quantile(1 - 2 * self._chance, others_df))
            )
        return _Lasting(centre, self._strictness * reach, _in_both_halves(late, centre))

    def _noise_of_others(self, rank: int) -> tuple[float, float] | None:
        """Return how much the other ranks' blocks vary beyond what all of them share, and its degrees of freedom."""
        sigmas = [sigma for other, sigma in self._noise.items() if other != rank]
        return (median(sigmas), (len(sigmas) - 1) * (self._count - 1)) if len(sigmas) > 1 else None

    def _late_in_some(self, reference: _Reference) -> dict[int, float]:
        """Return the ranks with more late steps than chance gives, as many as there are, and the log of that chance."""
        late = {rank: reference.beyond_by_step(rank) for rank in reference.ranks}
        level = median(self.typical[rank] for rank in reference.ranks)
        bound = max(self._share * level, _NOISE_SIGMAS * _mad_sigma([x for values in late.values() for x in values]))
        found = self._more_than_chance(late, bound, reference)
        if len(late) < 3:
            return found
        # In steps in which most ranks are late their median is no measure: the fastest ones are, as far as they agree.
        usual = [_fastest(column, bound) for column in reference.steps()]
        rows = {rank: zip(self.own[rank], usual, strict=True) for rank in late}
        late = {rank: [x - least for x, least in row if not isnan(x)] for rank, row in rows.items()}
        return max(found, self._more_than_chance(late, bound, reference), key=len)

    def _more_than_chance(
        self, late: Mapping[int, Sequence[float]], bound: float, reference: _Reference
    ) -> dict[int, float]:
        events = {rank: _events([x > bound for x in values]) for rank, values in late.items()}
        ordered = sorted(events, key=lambda rank: (-events[rank][0], rank))
        counts, steps = ([0, *accumulate(column)] for column in zip(*(events[rank] for rank in ordered), strict=True))
        some = sum(events[rank][0] > 0 for rank in ordered)
        for k in range(min(some, len(ordered) - 1), 0, -1):
            rate = (counts[-1] - counts[k] + 1) / (steps[-1] - steps[k] + _STEPS_PER_HICCUP)
            found = {rank: _at_least(*events[rank], rate) for rank in ordered[:k]}
            together = sum(log(max(p, 1e-300)) for p in found.values()) + log(comb(len(ordered), k))
            if max(found.values()) <= FALSE_ALARMS and together <= self._strictness * self._log_chance_of_some:
                return {rank: together for rank in found if self._recurs(rank, late[rank], reference)}
        return {}

    def _recurs(self, rank: int, by_step: Sequence[float], reference: _Reference) -> bool:
        mean = _mean(by_step)
        return self._is_enough(mean, rank, reference) and _in_both_halves(by_step, mean, of=_mean)

    def _one(self, rank: int, others: _Reference, some: float | None, reference: _Reference) -> LateRank:
        test, by_step, level = self._lasting(rank, others), others.beyond_by_step(rank), others.level(rank)
        steps_late = sum(x >= (1 - _ROUNDING) * self._share * level for x in by_step)
        late, reach = test.late, test.reach
        if some is None:
            score = DEFAULT_SCORE * self._strictness * late / reach if reach else 0.0
            is_late = rank not in reference.ranks and late > reach and test.lasts
            is_late = is_late and (len(by_step) >= _FEW_STEPS or steps_late == len(by_step))
            late = late if steps_late >= _ALWAYS * len(by_step) else _mean(by_step)
        else:
            late, is_late = _mean(by_step), True
            reach = t_quantile(0.95, len(by_step) - 1) * _deviation(by_step) / sqrt(len(by_step))
            score = DEFAULT_SCORE * some / self._log_chance_of_some
        is_late = is_late and late > others.differences() and self._is_enough(late, rank, others)
        return LateRank(
            rank=rank,
            is_late=is_late,
            late_ns=late,
            low_ns=late - reach,
            high_ns=late + reach,
            slowdown=(level + late) / level if level > 0 else 1.0,
            score=round(score, 2),
            own_ns=self.typical[rank],
            others_ns=level,
            steps_late=steps_late,
            num_steps=len(by_step),
            since=first_late(by_step, late / 2) if is_late else None,
        )


def _in_both_halves(late: Sequence[float], whole: float, of: Callable[[Sequence[float]], float] | None = None) -> bool:
    half = (len(late) + 1) // 2
    location = of or (lambda values: _centre(values)[0])
    return all(location(part) >= _IN_EACH_HALF * whole for part in (late[:half], late[len(late) - half :]))


def _fastest(ordered: Sequence[float], bound: float) -> float:
    """Return the median of sorted values without those that are further above the median of all below them.

    >>> _fastest([10.0, 10.2, 10.4, 30.0, 31.0], 1.0), _fastest([10.0, 30.0, 31.0], 1.0)
    (10.2, 10.0)
    """
    count = 1
    while count < len(ordered) and ordered[count] - _middle(ordered, count) <= bound:
        count += 1
    return _middle(ordered, count) if ordered else nan


def _events(is_late: Sequence[bool]) -> tuple[int, int]:
    """Return how often something happened, and of how many: what lasts for several steps happened once."""
    total = sum(is_late)
    if not total:
        return 0, len(is_late)
    stretches = int(is_late[0]) + sum(now and not before for before, now in pairwise(is_late))
    return stretches, max(round(len(is_late) * stretches / total), stretches)


def _at_least(count: int, of: int, rate: float) -> float:
    """Return how likely chance gives at least so many of so many.

    >>> round(_at_least(2, 3, 0.5), 3), _at_least(1, 3, 0.5)
    (0.5, 1.0)
    """
    if count <= of * rate:
        return 1.0
    term = exp(
        lgamma(of + 1) - lgamma(count + 1) - lgamma(of - count + 1) + count * log(rate) + (of - count) * log1p(-rate)
    )
    total = term
    for k in range(count, of):
        term *= (of - k) / (k + 1) * rate / (1 - rate)
        total += term
    return total


def first_late(late: Sequence[float], bound: float) -> int:
    """Return the place from which on values are above a bound: the start with the most above and the fewest below it.

    >>> first_late([1.0, 9.0, 1.0, 9.0, 9.0, 1.0, 9.0], 5.0)
    3
    """
    best, total, since = 0, 0, len(late) - 1
    for at in range(len(late) - 1, -1, -1):
        total += 1 if late[at] > bound else -1
        if total > best:
            best, since = total, at
    return since


def median(values: Iterable[float]) -> float:
    """Return the median; `statistics`, with fractions and decimals, takes a helper process longer to import."""
    return _median_without(sorted(values), None)


def _median_without(ordered: Sequence[float], value: float | None) -> float:
    """Return the median of sorted values but for one of this value."""
    gone = len(ordered) if value is None else bisect_left(ordered, value)
    last = len(ordered) - (value is not None) - 1
    low, high = (ordered[k + (k >= gone)] for k in (last // 2, (last + 1) // 2))
    return (low + high) / 2


def _middle(ordered: Sequence[float], count: int) -> float:
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _middle_means(values: Sequence[float], count: int) -> list[float]:
    cuts = pairwise(round(k * len(values) / count) for k in range(count + 1))
    return [_mean(sorted(values[a:b])[(b - a) // 4 : (b - a) - (b - a) // 4]) for a, b in cuts]


def _mad_sigma(values: Sequence[float]) -> float:
    middle = median(values)
    return 1.4826 * median(abs(x - middle) for x in values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sqrt(sum((x - mean) ** 2 for x in values) / max(len(values) - 1, 1))


def _noise(blocks: Own) -> dict[int, float]:
    centred = {rank: [x - median(values) for x in values] for rank, values in blocks.items()}
    shared = [median(column) for column in zip(*centred.values(), strict=True)]
    return {rank: _deviation([x - y for x, y in zip(row, shared, strict=True)]) for rank, row in centred.items()}


def _centre(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the location, its standard error and degrees of freedom: of few values the median, else trimmed."""
    n = len(values)
    if n < _FEW_STEPS:
        return median(values), 1.2533 * _mad_sigma(values) / sqrt(n), n - 1.0
    cut, ordered = n // 5, sorted(values)
    inner = ordered[cut : n - cut]
    winsorised = [inner[0]] * cut + inner + [inner[-1]] * cut
    return _mean(inner), _deviation(winsorised) / sqrt(n) * n / len(inner), len(inner) - 1.0


def _independent(values: Sequence[float]) -> float:
    """Return the number of independent values with the same information, by the lag-1 autocorrelation."""
    sigma, middle, n = _mad_sigma(values), median(values), len(values)
    clipped = [min(max(x - middle, -3 * sigma), 3 * sigma) for x in values]
    mean = _mean(clipped)
    clipped = [x - mean for x in clipped]
    power = sum(x * x for x in clipped)
    if not power:
        return float(n)
    # A short series shows less correlation than there is (Kendall: by (1 + 4 r) / n), and a few values hardly any.
    r = sum(a * b for a, b in pairwise(clipped)) / power
    r = (n * max(r + (1 + 4 * max(r, 0.0)) / n, 0.0) + _EXPECTED * _CORRELATION) / (n + _EXPECTED)
    r = min(r, 0.95)
    return n * (1 - r) / (1 + r)
