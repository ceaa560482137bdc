"""What looks like a password is masked; what only sounds like one is not."""

from __future__ import annotations

import pytest

from rlexp.text import masked, masked_command


def test_secret_keys_are_masked_at_any_depth() -> None:
    config = {"env_config": {"servers": [{"redisPassword": "x", "port": 1}]}, "API_KEY": "x", "token": None}
    assert masked(config) == {
        "env_config": {"servers": [{"redisPassword": "***", "port": 1}]},
        "API_KEY": "***",
        "token": None,
    }


@pytest.mark.parametrize("key", ["num_tokens", "tokenizer", "key", "keys", "secretary", "lr"])
def test_other_keys_are_not(key: str) -> None:
    assert masked({key: 1}) == {key: 1}


def test_passwords_in_urls_are_masked() -> None:
    assert masked(["redis://user:pw@host:1/0", "http://host:80/a@b"]) == [
        "redis://user:***@host:1/0",
        "http://host:80/a@b",
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["-o", "config.password=x=y"], ["-o", "config.password=***"]),
        (["--token", "x", "file"], ["--token", "***", "file"]),
        (["--token=x", "file"], ["--token=***", "file"]),
        (["-o", "lr=0.1", "file"], ["-o", "lr=0.1", "file"]),
        (["secret", "file"], ["secret", "file"]),
    ],
)
def test_commands_are_masked(given: list[str], shown: list[str]) -> None:
    assert masked_command(given) == shown
