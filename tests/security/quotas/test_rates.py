"""Rate limits: never more than agreed, and a client that waits as asked is served."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headrace.security.quotas.rates import Rate, TokenBucket, Windows

NOW = 1_700_000_000_000
STEPS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 3_000_000)), min_size=1, max_size=40)


@given(windows=st.builds(Windows, st.integers(2, 15), st.integers(1, 3)), steps=STEPS, limit=st.integers(1, 2_000_000))
def test_after_the_wait_a_rate_is_within_its_limit_as_kafkas_formula_has_it(
    windows: Windows, steps: list[tuple[int, int]], limit: int
) -> None:
    rate, now = Rate(windows), NOW
    for passed, amount in steps:
        now += passed
        rate.add(amount, now)
        wait_ms = rate.wait_ms(limit, now)
        observed, over_ms = rate.measured(now)
        assert (windows.count - 1) * windows.length_ms <= over_ms < (windows.count + 1) * windows.length_ms
        # O * W / (W + X) = T, to half a millisecond.
        done = Fraction(observed) * over_ms
        assert abs(done / limit - over_ms - wait_ms) <= Fraction(51, 100) or (wait_ms == 0 and observed <= limit)


def test_a_rate_counts_all_windows_but_one_at_least_and_forgets() -> None:
    rate = Rate(Windows(11, 1))
    rate.add(1_000, NOW)
    assert rate.measured(NOW) == (100, 10_000)
    assert rate.wait_ms(100, NOW) == 0
    rate.add(1_000, NOW + 500)
    assert rate.wait_ms(100, NOW + 500) == 9_500
    rate.add(-1_000, NOW + 500)
    assert rate.measured(NOW + 10_999)[0] > 0
    assert rate.measured(NOW + 11_500) == (0, 10_000)


@given(rate=st.integers(1, 2_000_000), asks=STEPS)
def test_what_is_taken_stays_within_rate_burst_and_one_overdraft(rate: int, asks: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, rate, NOW)
    now = NOW
    taken = 0
    for passed, tokens in asks:
        now += passed
        if bucket.empty_ms(now) == 0:
            assert taken * 1000 < (now - NOW) * rate + rate * 1000
            bucket.take(tokens, now)
            taken += tokens


@given(st.integers(1, 2_000_000), st.lists(st.integers(1, 5_000_000), min_size=1, max_size=10))
def test_after_the_announced_wait_there_is_something_and_not_a_millisecond_before(rate: int, asks: list[int]) -> None:
    bucket = TokenBucket(rate, rate, NOW)
    now = NOW
    for tokens in asks:
        wait_ms = bucket.empty_ms(now)
        if wait_ms:
            assert bucket.empty_ms(now + wait_ms - 1) == 1
            now += wait_ms
            assert bucket.empty_ms(now) == 0
        bucket.take(tokens, now)


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = TokenBucket(5, 5, NOW)
    bucket.take(5, NOW)
    assert bucket.empty_ms(NOW - 10_000) > 0
    assert bucket.empty_ms(NOW) > 0


def test_an_overdrawn_bucket_is_waited_for_as_in_kafka() -> None:
    bucket = TokenBucket(2.5, 27.5, NOW)
    bucket.take(27.5, NOW)
    assert bucket.wait_ms(NOW) == 0
    bucket.take(10, NOW)
    assert bucket.wait_ms(NOW) == 4_000
    assert bucket.wait_ms(NOW + 4_000) == 0
    assert bucket.is_idle(NOW + 4_000 + 11_000)


def test_hardly_anything_is_a_limit_too() -> None:
    rate, bucket = Rate(Windows(11, 1)), TokenBucket(1e-310, 1e-309, NOW)
    rate.add(1, NOW)
    bucket.take(1, NOW)
    assert rate.wait_ms(1e-310, NOW) == bucket.wait_ms(NOW) == 2**53
