"""A secret does not get through, wherever it stands; what is none does."""

from __future__ import annotations

import json
import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cw_snapshot.coordinator.redaction import HIDDEN, Redactor

SAFE = string.ascii_letters + string.digits + "-_.~+/=!$%^*(),;#?@:&"
secrets = st.text(SAFE, min_size=8, max_size=60)
words = st.text(string.ascii_lowercase + " \n.:=/", max_size=30)
names = st.sampled_from(["HF_TOKEN", "my.password", "AWS_SECRET_ACCESS_KEY", "auth", "Cookie", "db[pass]"])
LINES = [
    "{name}={secret}",
    "{name}: {secret}",
    "{name} = {secret}",
    "'{name}': '{secret}'",
    "https://bucket.host/a?X-Amz-Signature={secret}&x=1",
    "https://host/a?x=1&X-Amz-Security-Token={secret}",
    "https://account.blob/a?se=1&sig={secret}",
    "postgres://user:{secret}@host:5432/db",
    "redis://:{secret}@host",
    "-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n{secret}",
]


@given(st.sampled_from(LINES), names, secrets, words, words)
def test_no_secret_is_left_in_a_text(line: str, name: str, secret: str, before: str, after: str) -> None:
    given_text = before + " " + line.format(name=name, secret=secret) + " " + after
    assume(secret not in given_text.replace(secret, "", 1))
    once = Redactor().text(given_text)
    assert secret not in once
    assert Redactor().text(once) == once, "hiding again changes nothing"


@given(names, st.text(min_size=1, max_size=60))
def test_no_secret_is_left_in_json_within_a_text(name: str, secret: str) -> None:
    document = json.dumps({name: secret, "step": 7})
    assert json.loads(Redactor().text(document)) == {name: HIDDEN, "step": 7}
    escaped = json.dumps(document)
    assert json.loads(json.loads(Redactor().text(escaped))) == {name: HIDDEN, "step": 7}


@given(names, st.text(min_size=1))
def test_no_secret_is_left_in_an_environment(name: str, secret: str) -> None:
    assert Redactor().environment([f"{name}={secret}", "PATH=/bin"]) == [f"{name}={HIDDEN}", "PATH=/bin"]


@given(secrets)
def test_no_secret_is_left_in_arguments(secret: str) -> None:
    assume(not secret.startswith("--"))
    given_words = [
        "train",
        "--api-key",
        secret,
        f"--token={secret}",
        f"PASSWORD={secret}",
        "-u",
        f"me:{secret}",
    ]
    hidden = ["train", "--api-key", HIDDEN, f"--token={HIDDEN}", f"PASSWORD={HIDDEN}", "-u", f"me:{HIDDEN}"]
    assert Redactor().arguments([*given_words, "--lr", "0.1"]) == [*hidden, "--lr", "0.1"]


@given(secrets, words)
def test_what_was_secret_once_is_hidden_everywhere(secret: str, text: str) -> None:
    assume(not secret.startswith("/") and secret not in text)
    redactor = Redactor()
    redactor.environment([f"TOKEN={secret}"])
    hidden = redactor.everywhere({"a": [f"{text}{secret}{text}"], secret: 1})
    assert secret not in json.dumps(hidden, ensure_ascii=False)


@pytest.mark.parametrize(
    "token",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "sk-proj-abcdefghijklmnopqrst",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl",
    ],
)
def test_tokens_that_are_known_by_their_form(token: str) -> None:
    redactor = Redactor()
    assert (
        redactor.text(f"clone ({token}) and https://{token}@host/x")
        == f"clone ({HIDDEN}) and https://{HIDDEN}@host/x"
    )
    assert sum(redactor.counts.values()) == 2
    assert token not in redactor.text(f"Authorization: Bearer {token}")


def test_documents() -> None:
    document = {
        "command": ["train", "--token", "abc"],
        "environment": ["PASSWORD=a b", "HOME=/root"],
        "labels": {"api_key": "abc", "team": "red"},
        "pid": 7,
        "evidence": "fd 3: https://u:p@host/x",
    }
    assert Redactor().document(document) == {
        "command": ["train", "--token", HIDDEN],
        "environment": [f"PASSWORD={HIDDEN}", "HOME=/root"],
        "labels": {"api_key": HIDDEN, "team": "red"},
        "pid": 7,
        "evidence": f"fd 3: https://u:{HIDDEN}@host/x",
    }


@pytest.mark.parametrize(
    "line",
    [
        "(00.012345) Error (criu/sk-unix.c:930): sk unix: Can't dump half of stream unix connection.",
        "(00.012345) A session leader of 11(11) is outside of its pid namespace",
        "10.0.0.1:29500 -> 10.0.0.2:41222, /data/run@3/model.pt, inet CRIU-1234",
        "pid 7 fd 3: /dev/shm/x (deleted)",
    ],
)
def test_what_a_report_is_for_stays(line: str) -> None:
    assert Redactor().text(line) == line


def test_an_endless_line_costs_no_more() -> None:
    begin = time.process_time()
    for part in ("a", "://a:", "key", "eyJ-", "TOKEN=", "-----BEGIN PRIVATE KEY-----", '\\"key\\": \\"'):
        Redactor().text(part * ((1 << 18) // len(part)))
    assert time.process_time() - begin < 20  # a quadratic search takes minutes


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Token {}",
        '"Authorization": "ApiKey {}"',
        "sh -c 'train --api-key {} --steps 3'",
        '["train", "--hf-token", "{}", "--steps"]',
        "MYSQL_PWD={}",
        "--db-pwd {}",
        "SLACK_WEBHOOK_URL=https://hooks.example.com/services/{}",
    ],
)
def test_spellings_that_once_leaked(text: str) -> None:
    secret = "h7Gq2LmX9vT4"  # noqa: S105  # made up
    found = Redactor().text(text.format(secret))
    assert secret not in found
    assert HIDDEN in found


def test_words_after_other_flags_stay() -> None:
    for text in ("train --steps 300", "two-key thing", "PWD=/srv/llama", "--width 256 --times"):
        assert Redactor().text(text) == text
