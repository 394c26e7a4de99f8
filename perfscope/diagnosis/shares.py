"""How sure a share is that was counted in independent looks."""

from __future__ import annotations

import math


def wilson(share: float, looks: float, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share (0..1) that was seen in `looks` independent looks; z = 1.96: at 95 % confidence.

    Wilson's score interval: E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
    Journal of the American Statistical Association 22:209 (1927).
    """
    centre = share + z * z / (2 * looks)
    spread = z * math.sqrt(share * (1 - share) / looks + z * z / (4 * looks * looks))
    scale = 1 + z * z / looks
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
