"""exposition.py against prometheus_client's own parser, and against pages that are not as they should be."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.exposition import KEPT_BAD_LINES, Sample, parse
from tests.recorded import PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_equals_the_reference_parser(name: str) -> None:
    """The oracle groups by family, so the samples are compared as a set with multiplicity."""
    text = page(name)
    expected = [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]
    read = parse(text)
    assert sorted(map(repr, expected)) == sorted(repr(tuple(sample)) for sample in read.samples)
    assert not read.bad_count


def test_a_whole_page() -> None:
    assert len(parse(page("0.32.0-idle-whole")).samples) == 445


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("a 1", Sample("a", {}, 1)),
        ("a{} 1", Sample("a", {}, 1)),
        ('a{b="c",} 1', Sample("a", {"b": "c"}, 1)),
        ('a { b = "c" } 1', Sample("a", {"b": "c"}, 1)),
        ('    a{b="c"} 1', Sample("a", {"b": "c"}, 1)),
        ('a{b="c"} 1.5e3 1700000000000', Sample("a", {"b": "c"}, 1500)),
        ('a_bucket{le="1"} 2 # {trace_id="x"} 0.5 1700000000.1', Sample("a_bucket", {"le": "1"}, 2)),
        ('a{b="x}y,z{"} 1', Sample("a", {"b": "x}y,z{"}, 1)),
        (r'a{b="back\\slash \"quoted\" line\nend"} 1', Sample("a", {"b": 'back\\slash "quoted" line\nend'}, 1)),
        ("a 1\r", Sample("a", {}, 1)),
        ("a +Inf", Sample("a", {}, math.inf)),
        ("a -1.#INF", Sample("a", {}, -math.inf)),
        ("\ufeffa 1", Sample("a", {}, 1)),
    ],
)
def test_reads_a_line(line: str, sample: Sample) -> None:
    assert parse(line).samples == [sample]


@pytest.mark.parametrize("number", ["NaN", "nan", "-nan(ind)", "-nan", "nan(snan)", "1.#QNAN", "-1.#IND"])
def test_every_spelling_of_not_a_number(number: str) -> None:
    read = parse(f"a {number}\nb 1")
    assert math.isnan(read.samples[0].value)
    assert read.samples[1] == Sample("b", {}, 1)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a{b=1} 2",
        'a{b="c} 2',
        'a{b="c"',
        'a{b="c"} 0,5',
        'a{b="c"} 1 2 3 x',
        "<html>",
        "{} 1",
        "vllm:num_req",
        "\0",
    ],
)
def test_one_bad_line_never_loses_the_page(line: str) -> None:
    read = parse(f"first 1\n{line}\nlast 2\n")
    assert [sample.name for sample in read.samples] == ["first", "last"]
    assert read.bad_count == 1
    assert read.bad_lines[0].startswith(line[:1])


def test_bad_lines_are_all_counted_and_few_kept() -> None:
    read = parse("?\n" * 1000 + "a 1\n")
    assert (len(read.samples), read.bad_count, len(read.bad_lines)) == (1, 1000, KEPT_BAD_LINES)


def test_comments_are_no_samples() -> None:
    read = parse("# HELP a What it is.\n# TYPE a counter\n# any\n#\n\na 1\n# EOF\n")
    assert (read.samples, read.help, read.bad_count) == ([Sample("a", {}, 1)], {"a": "What it is."}, 0)


@pytest.mark.parametrize("text", ["{" * 10**6, "a{" * 10**6, 'a{"' * 10**6, "a" * 10**7, 'a{b="' + "\\" * 10**6])
def test_garbage_takes_no_longer_than_its_length(text: str) -> None:
    """Each would take minutes with a pattern that tries again from every character."""
    assert parse(text).samples == []
