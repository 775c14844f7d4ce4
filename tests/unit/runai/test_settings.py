# SPDX-License-Identifier: Apache-2.0
"""One decision on where object storage is: options before variables, and both halves of the stack are told."""

from __future__ import annotations

import pytest

from weight_readers_runai.s3_settings import S3Settings, resolve

HERE = "http://127.0.0.1:9000"


def test_an_option_wins_over_the_environment_and_the_origin_is_told() -> None:
    settings = resolve(endpoint=HERE, environ={"AWS_ENDPOINT_URL": "http://elsewhere", "AWS_REGION": "eu-west-3"})
    assert (settings.endpoint, settings.region) == (HERE, "eu-west-3")
    assert f"{HERE} (option of reader 'runai_streamer')" == settings.effective()["endpoint"]
    assert settings.effective()["region"] == "eu-west-3 (AWS_REGION)"


def test_the_variable_for_s3_alone_wins_over_the_one_for_all_services() -> None:
    assert resolve(environ={"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": HERE}).endpoint == HERE


def test_the_deprecated_variable_is_honoured_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="Set AWS_ENDPOINT_URL instead"):
        settings = resolve(environ={"RUNAI_STREAMER_S3_ENDPOINT": HERE})
    assert (settings.endpoint, settings.native()["AWS_ENDPOINT_URL"]) == (HERE, HERE)


def test_of_both_variables_the_new_one_counts_without_a_warning() -> None:
    assert resolve(environ={"RUNAI_STREAMER_S3_ENDPOINT": "http://old", "AWS_ENDPOINT_URL": HERE}).endpoint == HERE


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "minio", "s3://bucket", "http://"])
def test_an_endpoint_that_is_no_url_is_refused_by_the_name_of_its_variable(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"AWS_ENDPOINT_URL.*must be a URL that begins with http"):
        resolve(environ={"AWS_ENDPOINT_URL": endpoint})


def test_a_trailing_slash_makes_no_difference() -> None:
    assert resolve(endpoint=f"{HERE}/").endpoint == HERE


@pytest.mark.parametrize(
    ("endpoint", "path_style"),
    [
        (None, False),
        (HERE, True),
        ("http://localhost:9000", True),
        ("https://minio.example.org", True),
        ("https://s3.eu-west-3.amazonaws.com", False),
    ],
)
def test_path_style_is_the_default_for_stores_other_than_amazons(endpoint: str | None, path_style: bool) -> None:
    settings = resolve(endpoint=endpoint, environ={})
    assert path_style == settings.path_style
    assert settings.native()["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] == ("0" if path_style else "1")


def test_the_libraries_own_variables_count_and_options_win() -> None:
    own = {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0", "RUNAI_STREAMER_S3_UNSIGNED": "1"}
    settings = resolve(environ=own)
    assert (settings.path_style, settings.unsigned) == (True, True)
    settings = resolve(path_style=False, unsigned=False, environ=own)
    assert (settings.path_style, settings.unsigned) == (False, False)


def test_unsigned_is_not_guessed_from_missing_credentials() -> None:
    assert resolve(environ={}).unsigned is False


def test_secrets_are_named_and_never_shown() -> None:
    settings = resolve(environ={"AWS_ACCESS_KEY_ID": "AKIA7", "AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in str(settings)
    assert all(secret not in f"{settings} {settings!r}" for secret in ("AKIA7", "hunter2"))


def test_what_nobody_set_is_left_to_the_libraries() -> None:
    assert {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "RUNAI_STREAMER_S3_UNSIGNED"} == set(S3Settings().native())
