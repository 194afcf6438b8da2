"""Each source gives prose without its packaging: no HTML, no proofs, no R."""

import struct
import zlib
from pathlib import Path

import pytest

from backend.lab.sources import austen, factbook, fetch, metamath, stdlib

SET_MM = """
$( =-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-
        Simple syllogisms
=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=-=- $)
${
  syl.1 $e |- ( ph -> ps ) $.
  syl.2 $e |- ( ps -> ch ) $.
  $( An inference version of ~ imim2i , where ` ph ` implies ` ps ` .  (Contributed by NM, 30-Sep-1992.)
     (Proof shortened by Mel L. O'Cat (with help), 20-Oct-2011.) $)
  syl $p |- ( ph -> ch ) $= ( wi a1i mpd ) ABCDBCFAEGH $.
$}
$( An identity.  (Contributed by NM, 1-Jan-1993.) $)
id $p |- ( ph -> ph ) $= ( wi ax-1 mp2 ) AAABZBF $.
$( Lemma for ~ id . $)
idlem $p |- ( ph -> ph ) $= ( ax-1 ) A $.
"""


def test_html_is_stripped_and_entities_are_resolved() -> None:
    value = "<p><strong>note:</strong> rice &amp; beans&nbsp;only<br><br>C&ocirc;te &lt;em&gt;d'Ivoire&lt;/em&gt;</p>"
    assert factbook.without_html(value) == "note: rice & beans only\nCôte d'Ivoire"


def test_less_than_in_prose_is_not_taken_for_a_tag() -> None:
    assert factbook.without_html("growth < 2% and debt > 60%") == "growth < 2% and debt > 60%"


def test_a_country_keeps_prose_and_leaves_figures_addresses_and_repeats() -> None:
    climate = "temperate along coast; cooler in highlands, with long rains from March"
    profile = {
        "Introduction": {"Background": {"text": "A former kingdom <em>became</em> a republic after a long war."}},
        "Geography": {
            "Climate": {"text": climate},
            "Area": {"total": {"text": "1,234,567 sq km; 1,200,000 sq km; 34"}},
        },
        "Environment": {"Climate": {"text": climate}},
        "Government": {"Embassy": {"text": "write to the consular section at consular@example.org for an answer"}},
    }
    assert factbook.prose(profile).split("\n\n") == [
        "A former kingdom became a republic after a long war.",
        f"Climate: {climate}",
    ]


def test_a_theorem_keeps_its_description_hypotheses_and_statement_but_no_proof_nor_editor() -> None:
    theorems = dict(line.rsplit("\n", 1) for _, line in metamath._theorems(SET_MM))
    assert theorems == {
        "An inference version of imim2i, where ph implies ps.": "syl: ( ph -> ps ) & ( ps -> ch ) => ( ph -> ch )",
        "An identity.": "id: ( ph -> ph )",
    }


def r_vector(texts: list[str]) -> bytes:
    """R's XDR serialisation, version 3, of a character vector, as a lazy-load database holds it."""
    data = b"X\n" + struct.pack(">iii", 3, 0x40201, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
    data += struct.pack(">ii", 16, len(texts))
    for text in texts:
        data += struct.pack(">ii", 0x40009, len(text.encode())) + text.encode()
    return struct.pack(">i", len(data)) + zlib.compress(data)


def test_character_vectors_come_out_of_an_r_database_as_they_went_in() -> None:
    novels = [["EMMA", "", "Chapter 1", "café"], ["PERSUASION"]]
    assert list(austen.character_vectors(b"".join(map(r_vector, novels)))) == novels


def test_another_r_object_is_refused_by_name() -> None:
    data = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8" + struct.pack(">ii", 19, 1)
    with pytest.raises(fetch.SourceMissing, match="type 19"):
        list(austen.character_vectors(struct.pack(">i", len(data)) + zlib.compress(data)))


def test_a_novel_is_cut_at_its_chapters_and_its_lines_are_joined() -> None:
    line = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
    lines = ["PRIDE AND PREJUDICE", "Chapter 1", "", *[line] * 20, "", "must want a wife.", "CHAPTER II", *[line] * 20]
    first, second = austen.chapters("Novel", lines)
    assert (first.name, second.name) == ("Novel, chapter 1", "Novel, chapter 2")
    assert first.text == f"{' '.join([line] * 20)}\n\nmust want a wife."


def test_code_leaves_out_tests_and_modules_under_copyleft(tmp_path: Path) -> None:
    body = "def f(value):\n    return value + 1\n" * 60
    for name, text in {
        "good.py": body,
        "test/test_good.py": body,
        "free.py": f"# GNU General Public License\n{body}",
        "small.py": "x = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [document.name for document in stdlib.read(tmp_path).documents] == ["good.py"]


def test_a_system_without_apt_is_told_what_to_bring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.SourceMissing, match=r"r-cran-janeaustenr 1\.0\.0-1 .* unpacked as"):
        austen.read(tmp_path / "packages")


def test_a_package_unpacks_below_a_folder_named_from_where_the_command_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the default `data/corpus` is. A stand-in for apt-get leaves an archive where it runs; dpkg-deb is tar's."""
    tools = {
        "apt-get": 'echo text > file && tar -cf "${2%%=*}_1_all.deb" file && rm file',
        "dpkg-deb": 'mkdir "$3" && tar -xf "$2" -C "$3"',
    }
    for name, does in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert (fetch.debian("words", "1", Path("data/packages")) / "file").read_text() == "text\n"


def test_a_system_without_a_compiler_is_told_which_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.SourceMissing, match="apt-get install gcc"):
        fetch.installed("a-package-nobody-has", "1", tmp_path)
