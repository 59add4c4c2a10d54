"""No token in what a person is shown."""

from __future__ import annotations

import pytest

from engines.tools.secrets import redacted


@pytest.mark.parametrize(
    ("text", "environ", "shown"),
    [
        ("Bearer my-own-token!", {"HF_TOKEN": "my-own-token"}, "Bearer ***!"),
        ("a hf_abcdefghijkl b", {}, "a *** b"),
        ("old-token", {"HUGGING_FACE_HUB_TOKEN": " old-token\n"}, "***"),
        ("hf_home is no token", {"HF_TOKEN": ""}, "hf_home is no token"),
    ],
)
def test_tokens_are_blotted_out(text: str, environ: dict[str, str], shown: str) -> None:
    assert redacted(text, environ) == shown
