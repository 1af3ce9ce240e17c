"""Target: one server to watch, as monitor.toml has it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.errors import InputError

SHOWN = 100
"""Of an address at most so much is repeated to a reader  [characters]."""
LONGEST_NAME = 100
"""Of a server that is added on a page  [characters]."""
_USER = re.compile(r"//[^/@]*@")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server to watch.

    name     what pages, alerts and the store call it; once in a file
    url      http://host:8000, with or without /metrics
    group    servers that are judged together, such as the replicas of one deployment; empty is none
    labels   what else tells it apart: region, owner
    headers  sent with each request; ${NAME} stands for an environment variable, so that no secret is in the file
    ca_file  certificates to trust instead of the system's
    verify   whether the certificate is checked at all
    """

    name: str
    url: str
    group: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    verify: bool = True

    @property
    def shown_url(self) -> str:
        """The address without a user and password in it."""
        return without_user(self.url)


def shortened(text: str) -> str:
    """
    >>> shortened("gpu1:8000"), len(shortened("http://gpu1:8000/" + 3000 * "a"))
    ('gpu1:8000', 101)
    """
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def without_user(url: str) -> str:
    """
    >>> without_user("http://ann:pa55@gpu1:8000/metrics")
    'http://gpu1:8000/metrics'
    """
    return _USER.sub("//", url)


def new_name(name: str) -> str:
    """The name, as one that is added now may be. Raises InputError where it is long or would be taken for an address.

    >>> new_name("http://gpu1:8000")
    Traceback (most recent call last):
    planner.errors.InputError: name: found 'http://gpu1:8000', accepted: at most 100 characters, without ://
    """
    if len(name) > LONGEST_NAME or "://" in name:
        raise InputError("name", shortened(without_user(name)), f"at most {LONGEST_NAME} characters, without ://")
    return name


def unset(target: Target) -> list[str]:
    """Environment variables that a target needs and that are not set.

    >>> unset(Target(name="chat-1", url="http://gpu1:8000", headers={"Authorization": "Bearer ${NOT_SET_ANYWHERE}"}))
    ['NOT_SET_ANYWHERE']
    """
    named = [name for text in (target.url, *target.headers.values()) for name in _VARIABLE.findall(text)]
    return [name for name in dict.fromkeys(named) if name not in os.environ]


def expanded(field_name: str, text: str) -> str:
    """The text with each ${NAME} replaced by that environment variable. Raises InputError where one is not set.

    >>> expanded("headers.Authorization", "Bearer ${NOT_SET_ANYWHERE}")
    Traceback (most recent call last):
    planner.errors.InputError: headers.Authorization: found '${NOT_SET_ANYWHERE}', accepted: a variable that is set
    """

    def value(match: re.Match[str]) -> str:
        if (found := os.environ.get(match[1])) is None:
            raise InputError(field_name, match[0], "a variable that is set")
        return found

    return _VARIABLE.sub(value, text)
