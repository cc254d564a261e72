"""What tests look at in requests and responses that carry tokens."""

from __future__ import annotations

import httpx
from engram import Token

BROWSER = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}


def token_of(response: httpx.Response) -> Token:
    """The token of a reply or an answer."""
    return Token.parse(response.headers["engram-token"])


def cookie_of(browser: httpx.Client) -> Token:
    """The token that a browser keeps."""
    (cookie,) = (cookie for cookie in browser.cookies.jar if cookie.name == "engram-token")
    return Token.parse(cookie.value or "")
