# SPDX-License-Identifier: Apache-2.0
"""Does the message of a broken connection say whom it was to reach, and why it did not?"""

from __future__ import annotations

import httpx2

from penstock.retry.classify import format_connection_detail


def refused(url: str) -> httpx2.ConnectError:
    return httpx2.ConnectError("All attempts failed", request=httpx2.Request("GET", url))


def test_the_address_is_told_without_what_may_be_secret() -> None:
    error = refused("http://user:password@archive.example:8080/path?key=secret")

    assert format_connection_detail(error, str(error)) == " [to archive.example:8080]"


def test_an_error_of_an_sdk_tells_what_it_was_raised_from() -> None:
    error = RuntimeError("Connection error.")
    error.__cause__ = refused("http://archive.example")

    assert format_connection_detail(error, str(error)) == " [ConnectError: All attempts failed]"


def test_nothing_is_said_twice_and_nothing_is_made_up() -> None:
    error = refused("http://archive.example")

    assert format_connection_detail(error, "no way to archive.example") == ""
    assert format_connection_detail(OSError("no route"), "no route") == ""
    assert (
        format_connection_detail(httpx2.ConnectError("without a request"), "without a request")
        == ""
    )


def test_a_class_that_cannot_be_asked_is_passed_over() -> None:
    class Odd(Exception):
        @property
        def request(self) -> object:
            raise ValueError("no")

    assert format_connection_detail(Odd("x"), "x") == ""
