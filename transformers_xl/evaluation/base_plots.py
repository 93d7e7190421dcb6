"""The picture of the ways in which a base reads a text."""

from typing import Any

from matplotlib.figure import Figure

from transformers_xl.evaluation.plots import figure, line, styled

PANELS = {
    "bits per byte": ("bits_per_byte", 1.0, "{:.3f}"),
    "milliseconds a token": ("milliseconds_per_token", 1.0, "{:.1f}"),
    "MB kept between segments": ("kept_bytes", 1e-6, "{:.1f}"),
}


@styled
def draw_base_ways(result: dict[str, Any]) -> Figure:
    """Bars of what each way predicts, takes and keeps, of what `measure_base_ways` found."""
    ways = result["ways"]
    picture, axes = figure(columns=len(PANELS), width=3.2, height=0.5 + 0.4 * len(ways), sharey=True)
    for panel, (title, (key, scale, form)) in zip(axes[0], PANELS.items(), strict=True):
        values = [way[key] * scale for way in ways.values()]
        colors = [line(index, len(ways))["color"] for index in range(len(ways))]
        bars = panel.barh(list(ways), values, color=colors)
        panel.bar_label(bars, [form.format(value) for value in values], padding=2, fontsize="small")
        panel.set_xlim(0, 1.25 * max(values) or 1.0)
        panel.set_title(title)
        panel.grid(visible=False, axis="y")
    axes[0, 0].invert_yaxis()
    picture.suptitle(
        f"{result['base']}, {result['tokens']:,} tokens of {', '.join(result['text'])}", fontsize="medium"
    )
    return picture


__all__ = ["draw_base_ways"]
