"""The normal distribution over arrays, which NumPy does not have."""

from __future__ import annotations

from math import erfc, sqrt

import numpy as np

# Wichura, The Percentage Points of the Normal Distribution (AS 241, PPND16), Applied Statistics 37, 1988, as in
# `statistics.NormalDist.inv_cdf`. Numerator and denominator, highest power first: middle, tails, far tails.
_OF_MIDDLE = (
    (2.50908_09287_30122_6727e3, 3.34305_75583_58812_8105e4, 6.72657_70927_00870_0853e4,
     4.59219_53931_54987_1457e4, 1.37316_93765_50946_1125e4, 1.97159_09503_06551_4427e3,
     1.33141_66789_17843_7745e2, 3.38713_28727_96366_6080e0),
    (5.22649_52788_52854_5610e3, 2.87290_85735_72194_2674e4, 3.93078_95800_09271_0610e4,
     2.12137_94301_58659_5867e4, 5.39419_60214_24751_1077e3, 6.87187_00749_20579_0830e2,
     4.23133_30701_60091_1252e1, 1.0),
)  # fmt: skip
_OF_TAIL = (
    (7.74545_01427_83414_07640e-4, 2.27238_44989_26918_45833e-2, 2.41780_72517_74506_11770e-1,
     1.27045_82524_52368_38258e0, 3.64784_83247_63204_60504e0, 5.76949_72214_60691_40550e0,
     4.63033_78461_56545_29590e0, 1.42343_71107_49683_57734e0),
    (1.05075_00716_44416_84324e-9, 5.47593_80849_95344_94600e-4, 1.51986_66563_61645_71966e-2,
     1.48103_97642_74800_74590e-1, 6.89767_33498_51000_04550e-1, 1.67638_48301_83803_84940e0,
     2.05319_16266_37758_82187e0, 1.0),
)  # fmt: skip
_OF_FAR = (
    (2.01033_43992_92288_13265e-7, 2.71155_55687_43487_57815e-5, 1.24266_09473_88078_43860e-3,
     2.65321_89526_57612_30930e-2, 2.96560_57182_85048_91230e-1, 1.78482_65399_17291_33580e0,
     5.46378_49111_64114_36990e0, 6.65790_46435_01103_77720e0),
    (2.04426_31033_89939_78564e-15, 1.42151_17583_16445_88870e-7, 1.84631_83175_10054_68180e-5,
     7.86869_13114_56132_59100e-4, 1.48753_61290_85061_48525e-2, 1.36929_88092_27358_05310e-1,
     5.99832_20655_58879_37690e-1, 1.0),
)  # fmt: skip
#: (8, 2, 1) each.
MIDDLE, TAIL, FAR = (np.array(each).T[:, :, None] for each in (_OF_MIDDLE, _OF_TAIL, _OF_FAR))
_ROOT_HALF = sqrt(0.5)


def scores(shares: np.ndarray) -> np.ndarray:
    """Normal scores of shares in (0, 1): `statistics.NormalDist().inv_cdf` of each."""
    from_middle = shares - 0.5
    found: np.ndarray = from_middle * _ratio(MIDDLE, 0.180625 - from_middle * from_middle)
    outside = np.abs(from_middle) > 0.425
    if outside.any():
        outer = from_middle[outside]
        depth = np.sqrt(-np.log(np.minimum(shares[outside], 0.5 - outer)))
        outer_scores, far = _ratio(TAIL, depth - 1.6), depth > 5.0
        if far.any():
            outer_scores[far] = _ratio(FAR, depth[far] - 5.0)
        found[outside] = np.copysign(outer_scores, outer)
    return found


def _ratio(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Numerator / denominator with (8, 2, 1) coefficients, both in one Horner scheme."""
    flat = x.ravel()
    both = coefficients[0] * flat
    for each in coefficients[1:-1]:
        both += each
        both *= flat
    both += coefficients[-1]
    ratio: np.ndarray = both[0] / both[1]
    return ratio.reshape(x.shape)


def beyond(scores_of: np.ndarray) -> np.ndarray:
    """(N,): P(Z > score) of each score."""
    return np.array([0.5 * erfc(score) for score in (scores_of * _ROOT_HALF).tolist()])
