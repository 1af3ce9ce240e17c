"""The text of a /metrics page -> Samples, in one pass. One bad line never loses the page.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (November 2026), with what OpenMetrics adds.
"""

import re
from functools import lru_cache
from typing import NamedTuple

KEPT_BAD_LINES = 20
"""How many unreadable lines are kept to be shown; all of them are counted."""
_SHOWN_CHARACTERS = 200


class Sample(NamedTuple):
    """One series' value.

    name    as the server writes it
    labels  shared between samples and scrapes: read them, never change them
    value   in the unit of its metric  [the metric's]
    """

    name: str
    labels: dict[str, str]
    value: float


class Page(NamedTuple):
    """One page, read.

    samples    in the order of the page
    help       HELP texts by name
    bad_count  how many lines could not be read  [lines]
    bad_lines  the first of them
    """

    samples: list[Sample]
    help: dict[str, str]
    bad_count: int
    bad_lines: tuple[str, ...]


_LINE = re.compile(
    r"""^[ \t]*(?:
        ([a-zA-Z_:][a-zA-Z0-9_:]*+)                                     # 1 name
        (?: [ \t]*\{ ([^"}\n]*+ (?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"[^"}\n]*+)*+) \}[ \t]* | [ \t]+ )   # 2 labels
        ([^\s{}]++) (?:[ \t]+[-+0-9.eE]++)?+                            # 3 value, perhaps a time
        (?:[ \t]*\#[^\n]*+)?+ [ \t\r]*$                                 # perhaps an exemplar
      | \#[ \t]*HELP[ \t]+(\S++)[ \t]*([^\n]*+)$                        # 4 name, 5 text
      | \#[^\n]*+$
      | ([^\s][^\n]*+)$                                                 # 6 anything else
    )""",
    re.MULTILINE | re.VERBOSE,
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPE = re.compile(r'\\([\\n"])')
_NAN = re.compile(r"[-+]?(?:nan(?:\(\w*\))?|1\.#(?:qnan|snan|ind)\d*)", re.IGNORECASE)
_INFINITY = re.compile(r"([-+]?)1\.#inf\d*", re.IGNORECASE)


def parse(text: str) -> Page:
    r"""The samples of a page in its own order. Timestamps and exemplars are dropped.

    >>> page = parse('# HELP up Is it?\nup{job="a"} 1\nusage -nan(ind)\noops\n')
    >>> page.samples[0], page.help, page.bad_count, page.bad_lines
    (Sample(name='up', labels={'job': 'a'}, value=1.0), {'up': 'Is it?'}, 1, ('oops',))
    """
    samples: list[Sample] = []
    help_texts: dict[str, str] = {}
    bad_lines: list[str] = []
    bad_count = 0
    add = samples.append
    for name, label_text, number, helped, help_text, rest in _LINE.findall(text.lstrip("\ufeff")):
        if name:
            labels = _labels(label_text)
            value = _value(number)
            if labels is not None and value is not None:
                add(Sample(name, labels, value))
                continue
            rest = f"{name}{{{label_text}}} {number}" if label_text else f"{name} {number}"
        elif helped:
            help_texts[helped] = help_text
        if rest:
            bad_count += 1
            if bad_count <= KEPT_BAD_LINES:
                bad_lines.append(rest[:_SHOWN_CHARACTERS])
    return Page(samples, help_texts, bad_count, tuple(bad_lines))


def has_samples(text: str) -> bool:
    """Whether any line reads as a sample.

    >>> has_samples("<html>"), has_samples("# a comment\\nup 1")
    (False, True)
    """
    return any(match[1] and _value(match[3]) is not None for match in _LINE.finditer(text))


@lru_cache(maxsize=16_384)
def _labels(text: str) -> dict[str, str] | None:
    """The labels between the braces, or None when they do not read. Cached: the same series come back each scrape."""
    labels, end = {}, 0
    for match in _LABEL.finditer(text):
        if match.start() != end:
            return None
        value = match[2]
        labels[match[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        end = match.end()
    return labels if not text[end:].strip() else None


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


@lru_cache(maxsize=16_384)
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
