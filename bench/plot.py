"""A benchmark's rows as a picture: bars, those of one unit beside each other."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Beyond this ratio the short bars could not be told apart.
_LOGARITHMIC = 30
_DPI = 80
_COLOURS = 32  # few enough for a picture that is small on disk
_COLOUR = "#3b6ea5"


def plot(title: str, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image  # matplotlib brings it

    units = list(dict.fromkeys(row["unit"] for row in rows))
    groups = [[row for row in rows if row["unit"] == unit] for unit in units]
    heights = [len(group) + 2 for group in groups]
    figure, places = plt.subplots(
        len(groups), 1, squeeze=False, figsize=(10, 0.26 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    figure.suptitle(title, fontsize=9)
    for unit, group, place in zip(units, groups, places[:, 0], strict=True):
        values = [row["median"] for row in group]
        bars = place.barh([row["case"] for row in group], values, color=_COLOUR)
        place.bar_label(bars, [f"{value:,}" for value in values], fontsize=7, padding=3)
        place.invert_yaxis()
        place.set_xlabel(unit, fontsize=8)
        place.tick_params(labelsize=7)
        place.spines[["top", "right"]].set_visible(False)
        place.margins(x=0.12)
        if min(values) > 0 and max(values) / min(values) > _LOGARITHMIC:
            place.set_xscale("log")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    plt.close(figure)
