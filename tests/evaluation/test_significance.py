"""Intervals and paired tests, on numbers worked out elsewhere."""

import pytest

from unmask.evaluation.significance import mcnemar, paired, spread, wilson


def test_wilson_mcnemar_and_the_paired_bootstrap():
    assert wilson(50, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    assert wilson(0, 10) == pytest.approx((0, 0.27753), abs=1e-5) and wilson(10, 10)[1] == 1 and wilson(0, 0) == (0, 1)
    assert mcnemar(0, 0) == 1 and mcnemar(1, 9) == pytest.approx(2 * 11 / 1024) and mcnemar(5, 5) == 1
    assert mcnemar(400, 600) < 1e-9
    a, b = [True] * 60 + [False] * 40, [True] * 40 + [False] * 60
    test = paired(a, b)
    assert (test.difference, test.only_a, test.only_b) == (0.2, 20, 0)
    assert 0.11 < test.interval[0] < 0.2 < test.interval[1] < 0.29
    assert paired(a, b) == test  # seeded
    assert paired([], []).p == 1
    with pytest.raises(ValueError, match="the same rows"):
        paired([True], [])
    assert spread([1, 3]) == pytest.approx(2**0.5) and spread([1]) == 0
