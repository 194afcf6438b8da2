"""Prompt files as people have them: each row kept, mended or refused by itself, with what would be right."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import pytest

from backend.errors import Conflict, NotFound, Refusal, TooLarge
from backend.prompts import Prompt, Prompts, PromptSet, Report, load_shipped, parse, read_file
from backend.settings import Settings
from backend.store import Store
from tests.resident import grown_bytes

BOM = b"\xef\xbb\xbf"
MEBIBYTE = 1 << 20


def problems(report: Report) -> list[tuple[int, str, str]]:
    return [(p.row, p.field, p.severity) for p in report.problems]


def message(report: Report) -> str:
    [problem] = report.problems
    return problem.message


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_is_read_with_the_delimiter_it_has(delimiter: str) -> None:
    lines = ["id,text,category", 'a,"one, two; three\tfour",code', "b,next,story"]
    text = "\n".join([lines[0].replace(",", delimiter), lines[1][:2].replace(",", delimiter) + lines[1][2:-5]])
    text += f"{delimiter}code\n" + lines[2].replace(",", delimiter)
    report = parse(text.encode(), "my prompts.csv")
    assert report.prompts == [Prompt("a", "one, two; three\tfour", "code"), Prompt("b", "next", "story")]
    assert (report.name, report.format, report.problems) == ("my-prompts", "csv", [])


def test_csv_columns_may_stand_in_any_order_beside_others_and_rows_may_span_lines() -> None:
    report = parse(b'Category,note,TEXT\r\ncode,x,"two\r\nlines ""quoted"""\r\nstory,y,plain\r\n', "a.csv")
    expected = [Prompt("row-2", 'two\r\nlines "quoted"', "code"), Prompt("row-3", "plain", "story")]
    assert report.prompts == expected


def test_jsonl_is_one_object_a_line() -> None:
    rows = [{"text": "ä\n\u2028b", "id": "x", "category": "code", "other": [1]}, {"text": "y"}]
    report = parse("\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows).encode(), "a.jsonl")
    assert report.prompts == [Prompt("x", "ä\n\u2028b", "code"), Prompt("row-3", "y", "uncategorised")]
    assert report.problems == []


def test_txt_is_one_prompt_a_line_and_blank_lines_are_skipped() -> None:
    report = parse(b"one\r\n\r\n  two \n \nthree", "a.txt")
    assert [p.text for p in report.prompts] == ["one", "  two ", "three"]
    assert [p.id for p in report.prompts] == ["row-1", "row-3", "row-5"]
    assert report.to_json()["rows"] == 3


def test_a_byte_order_mark_is_taken_away_and_told() -> None:
    report = parse(BOM + b"text\nhello\n", "a.csv")
    assert report.prompts == [Prompt("row-2", "hello", "uncategorised")]
    assert problems(report) == [(1, "file", "mended")] and "byte-order mark" in message(report)
    assert (report.states["good"], report.states["mended"]) == (1, 0)


def test_what_can_be_mended_is_mended_and_told() -> None:
    lines = [
        {"text": "a", "id": "x"},
        {"text": "b", "id": "x"},
        {"text": "c", "id": "x"},
        {"text": "d", "id": ""},
        {"text": "e", "id": 5},
        {"text": "f", "id": "y", "category": None},
        {"text": "g", "id": "z", "category": 3},
        {"text": "h", "id": "x-2"},
    ]
    report = parse("\n".join(map(json.dumps, lines)).encode(), "a.jsonl")
    assert [p.id for p in report.prompts] == ["x", "x-2", "x-3", "row-4", "5", "y", "z", "x-2-2"]
    assert [p.category for p in report.prompts[5:7]] == ["uncategorised", "3"]
    assert problems(report) == [(n, "category" if n in (6, 7) else "id", "mended") for n in range(2, 9)]
    assert "used by an earlier row; this one is named 'x-2'" in report.problems[0].message
    assert (report.states["good"], report.states["mended"], report.states["refused"]) == (1, 7, 0)


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        ('{"text": 5}', "text", "`text` is a number; it must be a string"),
        ('{"text": ["a"]}', "text", "`text` is a list; it must be a string"),
        ('{"text": true}', "text", "a truth value"),
        ('{"text": null}', "text", "`text` is missing"),
        ('{"prompt": "x"}', "text", "`text` is missing; every row needs one"),
        ('{"text": " \\n "}', "text", "`text` is blank"),
        ('{"text": "a\\u0000b"}', "text", "NUL character (position 2)"),
        ('{"text": "a\\ud800"}', "text", "half a surrogate pair (position 2)"),
        ('{"text": "x", "id": {}}', "id", "`id` is an object; it must be a string"),
        ('{"text": "x", "category": [1]}', "category", "`category` is a list"),
        ('{"text": "x", "id": 1.5}', "id", "`id` is a number"),
        ('{"text": "x", "id": "a\\u0000"}', "id", "NUL"),
        ('{"text": "x", "category": "' + "c" * 201 + '"}', "category", "201 characters; at most 200"),
        ('{"text": "x"', "row", "not JSON"),
        ("[1]", "row", "a JSON list; it must be an object"),
        ('"x"', "row", "a JSON string"),
        ("3", "row", "a JSON number"),
        ("null", "row", "a JSON null"),
        ("[" * 100_000, "row", "cannot be parsed"),
    ],
)
def test_a_bad_line_is_refused_by_itself_with_its_reason(line: str, field: str, reason: str) -> None:
    report = parse(f'{{"text": "before"}}\n{line}\n{{"text": "after"}}\n'.encode(), "a.jsonl")
    assert [p.text for p in report.prompts] == ["before", "after"]
    assert problems(report) == [(2, field, "refused")] and reason in message(report)
    json.dumps(report.to_json()).encode()


def test_a_row_of_100_000_characters_is_refused_with_the_limit_and_the_rest_is_kept() -> None:
    for name, text in [
        ("a.csv", f"text\nbefore\n{'z' * 100_000}\nafter\n"),
        ("a.txt", f"before\n\n{'z' * 100_000}\nafter\n"),
        ("a.jsonl", f'{{"text": "before"}}\n\n{{"text": "{"z" * 100_000}"}}\n{{"text": "after"}}\n'),
    ]:
        report = parse(text.encode(), name)
        assert [p.text for p in report.prompts] == ["before", "after"], name
        assert problems(report) == [(3, "text", "refused")]
        assert "100,000 characters; at most 32,000 are allowed" in message(report)
        assert len(json.dumps(report.to_json())) < 5_000, "a preview does not carry the row"


def test_bytes_that_are_no_utf8_cost_their_row_and_are_named_by_offset() -> None:
    for name, head in [("a.csv", b"text\n"), ("a.txt", b""), ("a.jsonl", b"")]:
        rows = [b'{"text": "%s"}' % t if name == "a.jsonl" else t for t in (b"before", b"b\xfcse", b"after")]
        file = head + b"\n".join(rows) + b"\n"
        report = parse(file, name)
        assert [p.text for p in report.prompts] == ["before", "after"], name
        assert problems(report) == [(3 if head else 2, "file", "refused")]
        assert f"Byte {file.index(0xFC)} of the file is no UTF-8" in message(report)


def test_csv_rows_of_the_wrong_form_are_refused_by_themselves() -> None:
    report = parse(b'id,text\na,before\nb,x,y\nc,"d"e\nd\n\ne,after\nf,"open\nand on', "a.csv")
    assert [p.text for p in report.prompts] == ["before", "after"]
    assert problems(report) == [
        (3, "row", "refused"),
        (4, "row", "refused"),
        (5, "text", "refused"),
        (8, "row", "refused"),
    ]
    messages = [p.message for p in report.problems]
    assert "3 cells, the header 2" in messages[0] and "in quotes" in messages[0]
    assert 'written twice ("")' in messages[1] and "missing" in messages[2]
    assert "A quote opened in line 8 is never closed; all from there to line 9" in messages[3]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"", "a.csv is empty"),
        ("a.jsonl", b"\n \r\n\t\n", "a.jsonl is empty"),
        ("a.txt", BOM, "a.txt is empty"),
        ("a.txt", b"\n" * 5000, "a.txt is empty"),
        ("a.csv", b"prompt,label\nx,y\n", "no `text` column; its first line names 'prompt', 'label'"),
        ("a.csv", b"text,Text\nx,y\n", "more than one `text` column"),
        ("a.csv", b"just a line\nand another\n", "no `text` column"),
        ("a.csv", b'"text\nx\n', "a quote in it is never closed"),
        ("a.csv", b"te\xffxt\nx\n", "Byte 2 of the file, in its header, is no UTF-8"),
        ("a.csv", b"text\n", "holds no row that can be used"),
        ("a.txt", b"\xff\xfa\n", r"row 1: Byte 0 of the file is no UTF-8"),
        ("a.txt", "hello".encode("utf-16"), "UTF-16"),
        ("a.json", b'[{"text": "x"}]', "JSON list"),
        ("a.json", b'[\n{"text": "x"}\n]', "JSON list"),
        ("a.csv", b"PK\x03\x04 rest", "a ZIP or Excel file"),
        ("a.txt", b"%PDF-1.7", "a PDF"),
        ("a.xlsx", b"text\nx\n", "known: .csv, .json, .jsonl, .ndjson, .tsv, .txt"),
        ("noending", b"text\nx\n", "ends in 'nothing'"),
        ("", b"text\nx\n", "ends in 'nothing'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_as_a_whole(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(Refusal, match=reason.replace("(", r"\(")):
        parse(content, name)


def test_a_file_of_50_megabytes_is_read_holding_little_more_than_its_prompts() -> None:
    row = b"word " * 525 + b",code\n"
    with tempfile.TemporaryFile() as file:
        file.write(b"text,category\n")
        for _ in range(20_000):
            file.write(row)
        assert file.tell() > 50 * MEBIBYTE
        with grown_bytes() as grown:
            report = parse(file, "big.csv")
    assert len(report.prompts) == 20_000 and report.prompt_set().categories == {"code": 20_000}
    assert grown[-1] < 120 * MEBIBYTE, f"{grown[-1] / MEBIBYTE:.0f} MiB for 50 MiB of prompts"


def test_a_single_line_of_50_megabytes_is_refused_as_a_row() -> None:
    report = parse(b"text\nfirst\n" + b"q" * (50 * MEBIBYTE), "big.csv")
    assert [p.text for p in report.prompts] == ["first"] and "52,428,800 characters" in message(report)


def test_more_bytes_or_rows_than_the_cap_are_refused_with_the_cap() -> None:
    with pytest.raises(TooLarge, match=r"more than 10 bytes"):
        parse(b"hello world", "a.txt", cap=10)
    with pytest.raises(TooLarge, match="more than 20,000 rows"):
        parse(b"a\n" * 20_001, "a.txt")
    assert len(parse(io.BytesIO(b"a\n" * 20_000), "a.txt").prompts) == 20_000


def test_a_report_shows_the_first_rows_and_every_problem_up_to_a_number() -> None:
    lines = ["text"] + [f"good {n}" for n in range(100)] + ["a,b"] * 300
    report = parse("\n".join(lines).encode(), "a.csv").to_json()
    assert (report["rows"], report["good"], report["refused"], len(report["problems"])) == (400, 100, 300, 300)
    states = [row["state"] for row in report["preview"]]
    assert states == ["good"] * 50 + ["refused"] * 200
    assert report["preview"][0] == {
        "row": 2,
        "id": "row-2",
        "text": "good 0",
        "category": "uncategorised",
        "state": "good",
    }


def test_problems_beyond_a_thousand_are_counted() -> None:
    report = parse(b"text\nfirst\n" + b"a,b\n" * 1500, "a.csv").to_json()
    assert (len(report["problems"]), report["problems_left_out"], report["refused"]) == (1000, 500, 1500)


def test_the_digest_is_of_the_prompts_and_not_of_the_name() -> None:
    a = PromptSet("a", (Prompt("1", "x", "c"), Prompt("2", "y", "c")), shipped=True)
    assert a.digest == PromptSet("b", a.prompts, shipped=False).digest
    others = [
        (Prompt("2", "y", "c"), Prompt("1", "x", "c")),
        (Prompt("1", "x", "d"), Prompt("2", "y", "c")),
        (Prompt("1", "x", "c"), Prompt("3", "y", "c")),
        (Prompt("1", "x", "c"),),
    ]
    assert len({PromptSet("a", o, shipped=True).digest for o in others} | {a.digest}) == 5


def test_what_ships_passes_the_same_rules(root: Path) -> None:
    shipped = {s.name: s for s in load_shipped(root / "data" / "prompts")}
    assert shipped["four-tasks"].categories == dict.fromkeys(("code", "mathematics", "story", "fact"), 20)
    assert all(s.shipped for s in shipped.values())


def test_a_file_at_the_terminal_is_refused_at_its_first_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(Refusal, match=r"a\.txt, row 2: Byte 5") as broken:
        read_file(tmp_path / "a.txt")
    (tmp_path / "a.csv").write_bytes(b'text\nfine\n"open')
    with pytest.raises(Refusal, match=r"a\.csv, row 3: A quote opened in line 3") as unclosed:
        read_file(tmp_path / "a.csv")
    for told in (str(broken.value), str(unclosed.value)):
        assert told.endswith("Nothing of the file was used.") and "left out" not in told


def test_a_library_finds_shipped_and_uploaded_sets_and_forgets_only_the_latter(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "prompts"
    folder.mkdir(parents=True)
    (folder / "basic.jsonl").write_text('{"text": "x"}\n')
    with Store.open(tmp_path / "store") as store:
        library = Prompts(Settings(data=tmp_path / "data"), store)
        uploaded = library.add(parse(b"hello\n", "Mine & yours.txt"))
        assert uploaded.name == "Mine-yours" and library.find("Mine-yours") == uploaded
        assert [(s["name"], s["shipped"]) for s in library.list()] == [("basic", True), ("Mine-yours", False)]
        with pytest.raises(Conflict, match="shipped prompt set 'basic'"):
            library.add(parse(b"hello\n", "basic.txt"))
        with pytest.raises(Refusal, match="is no name for a prompt set"):
            library.add(parse(b"hello\n", "x.txt"), "../up")
        with pytest.raises(Conflict, match="ships"):
            library.delete("basic")
        library.delete("Mine-yours")
        with pytest.raises(NotFound, match="known: basic") as caught:
            library.delete("Mine-yours")
        assert caught.value.known == ["basic"]
