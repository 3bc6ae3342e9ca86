"""Configuration file < environment < flags."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.coordinator.settings import SettingsError, load_settings, parse_duration, parse_size


def test_later_sources_win(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("repository: /from-file\nmax_pause: 2m\nthreads: 3\n")
    environment = {"CW_SNAPSHOT_CONFIG": str(config), "CW_SNAPSHOT_REPOSITORY": "/from-environment"}
    settings = load_settings(environment, {"threads": 5, "max_pause": None})
    assert settings.repository == "/from-environment"
    assert settings.max_pause == timedelta(minutes=2)
    assert settings.threads == 5


def test_paths_mean_the_same_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({"CW_SNAPSHOT_STATE_DIR": "state"}, {"repository": "here"})
    assert settings.state_dir == tmp_path / "state"
    assert settings.repository == str(tmp_path / "here")


@pytest.mark.parametrize("setting", ["THREADS", "CRIU_LOG_LEVEL", "LIMIT_MEMORY", "MAX_PAUSE"])
def test_a_mistake_in_the_environment_names_its_variable(setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({f"CW_SNAPSHOT_{setting}": "x"}, {})
    assert f"CW_SNAPSHOT_{setting}" in caught.value.evidence[0]
    assert "invalid literal" not in caught.value.evidence[0]


def test_mistakes_are_named(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("repo: /x\nmax_pause: soon\n")
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, config)
    text = "\n".join(caught.value.evidence)
    assert "repo" in text
    assert "soon" in text


@pytest.mark.parametrize("text", ["- a\n", "a: [\n"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(SettingsError):
        load_settings({}, {}, config)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        load_settings({}, {}, tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5s", 5), ("5", 5), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["0", "-1", "many", "5000"])
def test_threads_that_make_no_sense(text: str) -> None:
    with pytest.raises(SettingsError):
        load_settings({"CW_SNAPSHOT_THREADS": text}, {})


@pytest.mark.parametrize("text", ["", "5x", "-1s", "s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_sizes() -> None:
    given = {"0": 0, "1000": 1000, "512M": 512 << 20, "2GiB": 2 << 30, "1.5 k": 1536, "3 TB": 3 << 40}
    assert {text: parse_size(text) for text in given} == given
    for text in ("", "M", "-1", "5 X", "1e3"):
        with pytest.raises(ValueError, match="size"):
            parse_size(text)


def test_flags_are_named_as_they_are_typed() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {"limit_memory": "much", "max_pause": "long"})
    assert [line.split(":")[0] for line in caught.value.evidence] == ["--limit-memory", "--max-pause"]


@pytest.mark.parametrize("text", ["99999999999999d", "9" * 400 + "s", "366d"])
def test_durations_that_are_too_long(text: str) -> None:
    with pytest.raises(ValueError, match="longer than a year"):
        parse_duration(text)


def test_a_size_that_is_too_large() -> None:
    with pytest.raises(ValueError, match="larger"):
        parse_size("9" * 400)


def test_a_config_that_is_no_text(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, binary, binary / "below"):
        with pytest.raises(SettingsError) as caught:
            load_settings({}, {}, path)
        assert str(path) in caught.value.evidence[0]
