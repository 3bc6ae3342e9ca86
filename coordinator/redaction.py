"""Hiding secrets in what people show to others: environments, argument lists, URLs, logs.

What looks secret is hidden, in doubt too much. A value that was found secret in one place can be hidden
wherever else it stands. Pure: text in, text out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

HIDDEN = "<redacted>"

_NAME = "KEY|TOKEN|SECRET|PASS|[_-]PWD|CREDENTIAL|AUTH|COOKIE|SESSION|PRIVATE|SIGNATURE|WEBHOOK"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_LEAST_KNOWN = 8
"""Characters of a value that is hidden everywhere: shorter ones ("false", "1") are words of any text."""

_KEY_BEGIN, _KEY_END = "-----BEGIN [A-Z ]*PRIVATE KEY-----", "-----END [A-Z ]*PRIVATE KEY-----"
_ASSIGNED = rf"""(?:(?:{_NAME})[\w.\[\]-]{{0,64}}|(?<![a-z])sig)\\?["']?[ \t]*[=:][ \t]*"""
"""NAME=, "name": and name: of a secret; the quote may be escaped."""


def _rule(pattern: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | flags)


# Repeats whose end may be missing are bounded, so that a log of one endless line costs no more.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("private key", re.compile(rf"(?P<secret>{_KEY_BEGIN}.*?(?:{_KEY_END}|\Z))", re.DOTALL)),
    # Its beginning was cut off with the text before it.
    ("private key", re.compile(rf"\A(?P<secret>.*?{_KEY_END})", re.DOTALL)),
    # Passwords may hold raw "/" and "@", as people write them.
    (
        "password in a URL",
        _rule(r"""://[^/@\s:"'<>]{0,256}:(?!<redacted>@)(?P<secret>[^\s"'<>]{1,4096})@"""),
    ),
    # A user without a password is a token, as for git hosts.
    ("password in a URL", _rule(r"""https?://(?P<secret>[^/@\s:"'<>]{1,4096})@""")),
    # AWS, GitHub, GitLab, Hugging Face, OpenAI, Slack, Google, JSON web tokens.
    ("token", re.compile(r"(?<![\w-])(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{12,})")),
    (
        "token",
        re.compile(
            r"(?<![\w-])(?P<secret>(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AIza)[\w-]{16,})"
        ),
    ),
    ("token", re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)")),
    ("token", _rule(r"\b(?:Bearer|Basic)\s{1,8}(?P<secret>[\w.~+/=-]{6,})")),
    # The scheme and what follows it.
    (
        "token",
        _rule(r"""\bAuthorization\\?["']?[ \t]*[:=][ \t]*\\?["']?(?!<redacted>)(?P<secret>[^"'\\\r\n]+)"""),
    ),
    # --api-key VALUE, also as the words of a list.
    (
        "named value",
        _rule(
            rf"""(?<![\w-])--?[\w-]{{0,64}}(?:{_NAME})[\w-]{{0,64}}["']?,?[ \t]*[ \t"'](?!<redacted>)"""
            r"""(?P<secret>[^\s"',=-][^\s"',]*)"""
        ),
    ),
    # The value in escaped quotes, in quotes, or up to the next space.
    ("named value", _rule(rf"""{_ASSIGNED}\\"(?!<redacted>)(?P<secret>(?:\\\\(?:\\.|[^\\\n])|[^"\\\n])+)""")),
    ("named value", _rule(rf"""{_ASSIGNED}"(?!<redacted>)(?P<secret>(?:[^"\\\n]|\\[^\n])+)""")),
    ("named value", _rule(rf"""{_ASSIGNED}'(?!<redacted>)(?P<secret>[^'\n]+)""")),
    ("named value", _rule(rf"""{_ASSIGNED}(?!<redacted>)(?P<secret>(?!\\?["'])\S+)""")),
)

_USER_FLAGS = ("-u", "--user", "--proxy-user")
"""Of curl and others; the value is user:password."""


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name holds a secret."""
    return _SECRET_NAME.search(name) is not None


class Redactor:
    """Hides secrets, counts them, and remembers them for :meth:`everywhere`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How many of each kind were hidden."""
        self._known: set[str] = set()

    def _hide(self, kind: str, value: str) -> str:
        self.counts[kind] += 1
        # Paths are no secrets elsewhere, whatever the variable that names them is called.
        if len(value) >= _LEAST_KNOWN and not value.startswith("/") and HIDDEN not in value:
            self._known.add(value)
        return HIDDEN

    def text(self, text: str) -> str:
        """A text of any kind, such as a log."""
        for kind, rule in _RULES:

            def hide(match: re.Match[str], kind: str = kind) -> str:
                begin, end = (at - match.start() for at in match.span("secret"))
                whole = match.group()
                return whole[:begin] + self._hide(kind, match["secret"]) + whole[end:]

            text = rule.sub(hide, text)
        return text

    def environment(self, variables: Iterable[str]) -> list[str]:
        """Variables as NAME=value."""
        return [self._named(variable) for variable in variables]

    def _named(self, word: str) -> str:
        """NAME=value, whose value goes to the word's end."""
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name) and not re.search(r"\s", name):
            return f"{name}={self._hide('named value', value)}"
        return self.text(word)

    def arguments(self, words: Sequence[str]) -> list[str]:
        """The words of a command line."""
        out, before = [], ""
        for word in words:
            if before.startswith("-") and is_secret_name(before) and not word.startswith("--"):
                out.append(self._hide("named value", word))
            elif before in _USER_FLAGS and ":" in word:
                user, _, password = word.partition(":")
                out.append(f"{user}:{self._hide('named value', password)}")
            else:
                out.append(self._named(word))
            before = "" if "=" in word else word
        return out

    def document(self, value: Any) -> Any:
        """A JSON document. The lists of `command`, `cmdline` and `environment` are known as such."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._field(str(key), field) for key, field in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(item) for item in value]
        return value

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and is_secret_name(name):
            return self._hide("named value", value)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            if name in ("command", "cmdline"):
                return self.arguments(value)
            if name == "environment":
                return self.environment(value)
        return self.document(value)

    def everywhere(self, value: Any) -> Any:
        """Hide the values that were found secret so far, in a text or a document."""
        known = sorted(self._known, key=len, reverse=True)
        if not known:
            return value
        return self._replace(re.compile("|".join(map(re.escape, known))), value)

    def _replace(self, known: re.Pattern[str], value: Any) -> Any:
        if isinstance(value, str):
            value, count = known.subn(HIDDEN, value)
            self.counts["the same value elsewhere"] += count
            return value
        if isinstance(value, dict):
            return {self._replace(known, key): self._replace(known, field) for key, field in value.items()}
        if isinstance(value, list):
            return [self._replace(known, item) for item in value]
        return value
