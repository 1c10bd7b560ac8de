"""Passwords in URLs of databases, kept out of whatever people or files get to see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
SECRET_NAME = re.compile(r"pass(word|wd|phrase|code)?$|pwd$|secret|token", re.IGNORECASE)
SECRET_WITHIN = re.compile(r"(pass(word|wd)?|pwd)\s*=", re.IGNORECASE)  # as ODBC has it


def masked(text: str, url: str) -> str:
    """``text`` without the passwords of ``url``, however they are written in it.

    >>> url = "postgresql://me:p%40ss@host/name?sslpassword=more"
    >>> masked(url, url)
    'postgresql://me:***@host/name?sslpassword=***'
    >>> masked("no such host: 'ss@host'", "postgresql://me:p@ss@host/name")
    "no such host: '***@host'"
    """
    for start, end in reversed(list(_spans(url))):
        secret, shown = url[start:end], url[:start] + MASK + url[end:]
        text, url = text.replace(url, shown), shown
        for form in _forms(secret):
            text = _words(form).sub(MASK, text)
    return text


def _spans(url: str) -> Iterator[tuple[int, int]]:
    """Where in the URL passwords are, even if it is not one that can be used."""
    _, slashes, rest = url.partition("//")
    begin = len(url) - len(rest) if slashes else 0
    # An @ or a ? that should have been written as %40 or %3F may be within a password.
    question = url.find("?", begin)
    at = url.rfind("@", begin, question) if question >= 0 else -1
    at = url.rfind("@", begin) if at < 0 else at
    colon = url.find(":", begin, at) if at >= 0 else -1
    if 0 <= colon < at - 1:
        yield colon + 1, at
    port = re.compile(r"(\[[^\]]*\]|[^/?:]*):([^/?]+)").match(url, begin)
    if at < 0 and slashes and port and not port[2].isdigit():  # no port, but a host left out
        yield port.span(2)
    start = url.find("?", max(at, begin)) + 1
    for field in re.finditer(r"([^&;=]+)=([^&]*)", url[start:] if start else ""):
        name, value = unquote_plus(field[1]), unquote_plus(field[2])
        if value and (SECRET_NAME.search(name) or SECRET_WITHIN.search(value)):
            yield start + field.start(2), start + field.end(2)


def _forms(secret: str) -> list[str]:
    """All that may stand for it in a message, long ones first: as given, decoded, parts of it."""
    forms = {secret, unquote(secret), unquote_plus(secret)}
    # What a password should not have unescaped is where a message may show only the rest of it.
    forms |= {part for form in list(forms) for part in re.split(r"[@/:?#&;=]", form)}
    forms |= {write(form) for form in list(forms) for write in (_quote_all, quote_plus, _in_repr)}
    return sorted(forms - {"", MASK}, key=len, reverse=True)


def _words(form: str) -> re.Pattern[str]:
    """Where it stands for itself: a password ``postgres`` leaves ``postgresql`` as it is."""
    before = r"(?<!\w)" if re.match(r"\w", form) else ""
    after = r"(?!\w)" if re.search(r"\w$", form) else ""
    return re.compile(before + re.escape(form) + after)


def _quote_all(text: str) -> str:
    return quote(text, safe="")


def _in_repr(text: str) -> str:
    return repr(text)[1:-1]
