"""Answers and lists as text columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.sizes import gigabytes


def answer_table(answer: dict[str, Any]) -> str:
    """One row a cell: labels, value, and what is known of interval, null and p; title, unit, caveats around it."""
    from backend.wire import from_json, long_table  # pyarrow: only who prints an answer waits for it

    about, cells = answer["provenance"], long_table(from_json(answer).result)
    columns = [name for name in cells.column_names if name == "value" or cells[name].null_count < len(cells)]
    rows = [[number(cell) for cell in row.values()] for row in cells.select(columns).to_pylist()]
    lines = [
        f"{about['title']} ({answer['measure']}) of {', '.join(c['id'] for c in about['checkpoints'])}",
        f"unit: {answer['unit']}",
        columned(columns, rows),
        f"null: {answer['null'].get('reason') or answer['null']['how']}",
        f"interval: {answer['interval'].get('reason') or answer['interval']['how']}",
        *_of_layers(answer),
        *(f"caveat: {caveat}" for caveat in answer["caveats"]),
    ]
    return "\n".join(lines)


def _of_layers(answer: dict[str, Any]) -> list[str]:
    bounds = answer["interval"].get("over_layers")
    if not bounds:
        return []
    known = [value for value in answer["values"] if not isinstance(value, str)]
    mean, low, high = (number(value) for value in (sum(known) / len(known), *bounds))
    return [f"mean over layers: {mean} ({answer['interval']['level']:.0%} {low} to {high})"]


def plan_table(plan: dict[str, Any]) -> str:
    """What asking would take, a line each, and how what is estimated was estimated."""
    one = f"one batch of {plan['batch_tokens']:,} tokens"
    parts = {"weights": plan["memory"]["weights"], one: plan["memory"]["batch"], **plan["memory"]["states"]}
    memory = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    seconds, how = plan["seconds"], plan["how"]
    rows = [
        ("answered", "yes, nothing is run" if plan["answered"] else "no"),
        ("device", plan["device"]),
        ("dtype", plan["dtype"] or "no model is loaded"),
        ("model", plan["held"] or "none"),
        ("fetched first", gigabytes(plan["download_bytes"]) if plan["download_bytes"] else "nothing"),
        ("passes", f"{plan['passes']}, about {plan['tokens']:,} tokens ({how['tokens']})"),
        ("peak memory", f"about {gigabytes(plan['memory_bytes'])}: {memory or 'no model'} ({how['memory']})"),
        ("time", how["seconds"] if seconds is None else f"about {seconds:,.1f} s without loading ({how['seconds']})"),
    ]
    return columned(("plan", ""), rows)


def columned(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Left-aligned columns."""
    texts = [list(map(str, header)), *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(text) for text in column) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in texts)


def number(value: float | str) -> str:
    """Six digits, or the JSON's word for what is not finite; a label stays itself."""
    return value if isinstance(value, str) else f"{value:.6g}".replace("nan", "NaN").replace("inf", "Infinity")
