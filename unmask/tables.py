"""Tables as text: one writer for markdown, one for LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def shown(value: object) -> str:
    if value is None:
        return ""
    return (
        "yes" if value is True else "" if value is False else f"{value:.2f}" if isinstance(value, float) else str(value)
    )


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    cells = [[*columns], *([shown(row.get(c)) for c in columns] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"


def latex(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    def safe(text: str) -> str:
        for sign in "\\&%$#_{}":
            text = text.replace(sign, {"\\": r"\textbackslash "}.get(sign, "\\" + sign))
        return text

    lines = [" & ".join(safe(shown(row.get(c))) for c in columns) + r" \\" for row in rows]
    head = " & ".join(safe(c) for c in columns) + r" \\"
    kinds = "".join("l" if c in ("model", "task", "method", "a", "b") else "r" for c in columns)
    return "\n".join(
        [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""]
    )
