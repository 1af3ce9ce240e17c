"""The text of a /metrics page -> Samples, in one pass. One bad line never loses the page.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (November 2026), with what OpenMetrics adds.
"""

import re
from array import array
from functools import lru_cache
from operator import eq
from typing import NamedTuple

KEPT_BAD_LINES = 20
"""How many unreadable lines are kept to be shown; all of them are counted."""
_SHOWN_CHARACTERS = 200
_LONGEST_LINE = 65_536
"""Longer is no line of a server: it is cut, and then seldom reads."""
_CACHED_CHARACTERS = 500
"""Longer labels, such as a configuration, are rare on a page and read each time: a cache of them would grow."""


class Sample(NamedTuple):
    """One series' value.

    name    as the server writes it
    labels  shared between samples and scrapes: read them, never change them
    value   in the unit of its metric  [the metric's]
    """

    name: str
    labels: dict[str, str]
    value: float


class Lines(NamedTuple):
    """The lines of a page, and where their numbers stand.

    texts    as they came
    samples  the position of each line's sample among all; -1 for a line that is none  [position]
    cuts     where in a line its number begins                                         [characters]
    """

    texts: list[str]
    samples: "array[int]"
    cuts: "array[int]"


class Page(NamedTuple):
    """One page, read.

    samples    in the order of the page
    help       HELP texts by name
    bad_count  how many lines could not be read  [lines]
    bad_lines  the first of them
    lines      the page itself, to read the next one by; None where the samples are from elsewhere
    """

    samples: list[Sample]
    help: dict[str, str]
    bad_count: int
    bad_lines: tuple[str, ...]
    lines: Lines | None = None


_NUMBER = r"""([^\s{}]++) (?:[ \t]+[-+0-9.eE]++)?+       # a value, perhaps a time
              (?:[ \t]*\#[^\n]*+)?+ [ \t\r]*$            # perhaps an exemplar"""
_LINE = re.compile(
    rf"""[ \t]*(?:
        ([a-zA-Z_:][a-zA-Z0-9_:]{{0,999}}+)                             # 1 name
        (?: [ \t]*\{{ ([^"}}\n]*+ (?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"[^"}}\n]*+)*+) \}}[ \t]* | [ \t]+ )   # 2 labels
        {_NUMBER}                                                      # 3 value
      | \#[ \t]*HELP[ \t]+(\S++)[ \t]*(.*+)$                           # 4 name, 5 text
      | \#.*+$
      | (\S.*+)$                                                       # 6 anything else
    )""",
    re.VERBOSE,
)
_REST = re.compile(_NUMBER, re.VERBOSE)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]++|\\.)*+)"[ \t]*(?:,|$)')
_ESCAPE = re.compile(r'\\([\\n"])')
_NAN = re.compile(r"[-+]?(?:nan(?:\(\w*\))?|1\.#(?:qnan|snan|ind)\d*)", re.IGNORECASE)
_INFINITY = re.compile(r"([-+]?)1\.#inf\d*", re.IGNORECASE)


def parse(text: str) -> Page:
    r"""The samples of a page in its own order. Timestamps and exemplars are dropped.

    >>> page = parse('# HELP up Is it?\nup{job="a"} 1\nusage -nan(ind)\noops\n')
    >>> page.samples[0], page.help, page.bad_count, page.bad_lines
    (Sample(name='up', labels={'job': 'a'}, value=1.0), {'up': 'Is it?'}, 1, ('oops',))
    """
    lines = _lines(text)
    samples: list[Sample] = []
    help_texts: dict[str, str] = {}
    bad_lines: list[str] = []
    bad_count = 0
    for place, line in enumerate(lines.texts):
        match = _LINE.match(line, 0, _LONGEST_LINE)
        if match is None:
            continue
        name, label_text, number, helped, help_text, rest = match.groups()
        if name:
            labels = _labels(label_text) if label_text else {}
            value = _value(number)
            if labels is not None and value is not None:
                lines.samples[place], lines.cuts[place] = len(samples), match.start(3)
                samples.append(Sample(name, labels, value))
                continue
            rest = line
        elif helped:
            help_texts[helped] = help_text
        if rest:
            bad_count += 1
            if bad_count <= KEPT_BAD_LINES:
                bad_lines.append(rest[:_SHOWN_CHARACTERS].strip())
    return Page(samples, help_texts, bad_count, tuple(bad_lines), lines)


def _lines(text: str) -> Lines:
    texts = text.removeprefix("\ufeff").split("\n")
    return Lines(texts, array("i", [-1]) * len(texts), array("i", [0]) * len(texts))


def changes(lines: Lines, text: str) -> dict[int, float] | None:
    r"""The numbers of a server's next page that differ, by their sample's position; None where more than numbers does.

    `lines` are then those of the next page. Most of a page is as it was, which a comparison of its lines tells at once.

    >>> changes(parse('a 1\nb{c="d"} 2').lines, 'a 1\nb{c="d"} 3'), changes(parse("a 1").lines, "b 1")
    ({1: 3.0}, None)
    """
    texts = text.removeprefix("\ufeff").split("\n")
    if len(texts) != len(lines.texts):
        return None
    found: dict[int, float] = {}
    for place, is_same in enumerate(map(eq, texts, lines.texts)):
        if not is_same:
            line, cut, sample = texts[place], lines.cuts[place], lines.samples[place]
            rest = _REST.match(line, cut)
            value = None if rest is None else _value(rest[1])
            if sample < 0 or value is None or line[:cut] != lines.texts[place][:cut]:
                return None
            found[sample] = value
    lines.texts[:] = texts
    return found


def has_samples(text: str) -> bool:
    """Whether any line reads as a sample.

    >>> has_samples("<html>"), has_samples("# a comment\\nup 1")
    (False, True)
    """
    matches = filter(None, map(_LINE.match, text.split("\n")))
    return any(match[1] and _value(match[3]) is not None for match in matches)


def _labels(text: str) -> dict[str, str] | None:
    return _shared_labels(text) if len(text) <= _CACHED_CHARACTERS else _read_labels(text)


def _read_labels(text: str) -> dict[str, str] | None:
    """The labels between the braces, or None when they do not read."""
    labels, end = {}, 0
    for match in _LABEL.finditer(text):
        if match.start() != end:
            return None
        value = match[2]
        labels[match[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        end = match.end()
    return labels if not text[end:].strip() else None


_shared_labels = lru_cache(maxsize=8192)(_read_labels)
"""Servers of one model write the same labels."""


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _value(text: str) -> float | None:
    """The number, also in the spellings of C's printf on Windows, or None.

    >>> _value("+Inf"), _value("-nan(ind)"), _value("1.#INF"), _value("0,5")
    (inf, nan, inf, None)
    """
    try:
        return float(text)
    except ValueError:
        if _NAN.fullmatch(text):
            return float("nan")
        infinity = _INFINITY.fullmatch(text)
        return float(f"{infinity[1]}inf") if infinity else None
