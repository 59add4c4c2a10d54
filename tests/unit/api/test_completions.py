"""Text completions: a body to one call for each prompt, and their events to chunks or one body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from gateway.api.completions import DecodedCompletion, TextChunkEncoder, TextEncoder, decode
from gateway.api.dialect import Defaults
from gateway.errors import InvalidRequest, Unsupported
from gateway.residency import Phase
from gateway.supervisor.call import CallItem, Granted

RAW = wire.Parsers(None, None)


def decoded(prompt: Any = "Say", **fields: Any) -> DecodedCompletion:
    return decode(json.dumps({"model": "m", "prompt": prompt, **fields}).encode())


def made(
    prompt: Any = "Say", defaults: Defaults | None = None, **fields: Any
) -> list[wire.Generate]:
    """The calls of a request, numbered from 1."""
    request = decoded(prompt, **fields)
    makes = (request.make, *request.others)
    calls = [make(number, defaults or Defaults()) for number, make in enumerate(makes, 1)]
    return [call for call in calls if isinstance(call, wire.Generate)]


# --- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "calls"),
    [
        ("Say", [("Say", None)]),
        ("", [("", None)]),
        (["Say"], [("Say", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2, 3], [(None, [1, 2, 3])]),
        ([[1, 2], [3]], [(None, [1, 2]), (None, [3])]),
    ],
)
def test_each_prompt_is_a_call(prompt: Any, calls: list[Any]) -> None:
    requests = made(prompt)
    assert [(request.prompt, request.token_ids) for request in requests] == calls
    assert [request.id for request in requests] == list(range(1, len(calls) + 1))
    assert all((request.messages, request.parsers) == ([], RAW) for request in requests)


def test_everything_a_client_says_arrives_in_every_call() -> None:
    sampling = {"temperature": 0.5, "seed": 3, "logit_bias": {"5": 1}}
    fields: dict[str, Any] = {"max_tokens": 4, "n": 2, "best_of": 2, "logprobs": 3, **sampling}
    for request in made(["a", "b"], stop=["x"], **fields):
        assert request.sampling == wire.Sampling(0.5, seed=3, logit_bias={5: 1})
        assert (request.max_tokens, request.n, request.logprobs) == (4, 2, 3)
        assert request.stop == ("x",)
    answer = decoded(timeout=2, stream=True, stream_options={"include_usage": True})
    assert (answer.timeout_s, answer.stream, answer.include_usage) == (2, True, True)


def test_a_model_has_defaults_and_a_client_goes_before_them() -> None:
    defaults = Defaults(temperature=0.7, max_tokens=9, parsers=wire.Parsers("hermes"))
    (request,) = made(defaults=defaults)
    assert request == wire.Generate(
        1, prompt="Say", sampling=wire.Sampling(0.7), max_tokens=9, parsers=RAW
    )
    (request,) = made(defaults=defaults, temperature=0, max_tokens=2)
    assert (request.sampling.temperature, request.max_tokens) == (0, 2)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, [2]]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [[1], [2, 2**31]]}, "prompt[1][1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_bad_input_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        decoded(**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"echo": True, "prompt": [1, 2]}, "echo"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as error:
        decoded(**fields)
    assert error.value.param == param


def test_nulls_and_defaults_pass() -> None:
    nulls = ["suffix", "best_of", "echo", "logprobs", "n", "stop", "max_tokens", "logit_bias"]
    no_values: dict[str, Any] = dict.fromkeys(nulls)
    defaults: dict[str, Any] = {
        "suffix": "",
        "best_of": 1,
        "echo": False,
        "n": 1,
        "presence_penalty": 0,
    }
    assert made(**no_values) == made(**defaults) == made()


# --- encoding -------------------------------------------------------------------------------------

USAGE = wire.Usage(10, 3, 4)
FINISHED = wire.Finished(1, USAGE, wire.Timings())
BEFORE: list[CallItem] = [Phase.LOADING, Granted(), wire.Started(1, 10, 4)]


def text(text: str, choice: int = 0) -> wire.TextDelta:
    return wire.TextDelta(1, choice, text)


def answered(*events: CallItem) -> list[CallItem]:
    """A whole call with one choice."""
    return [*BEFORE, *events, wire.ChoiceFinished(1, 0, "length"), FINISHED]


def streamed(items: list[CallItem], request: DecodedCompletion) -> list[Any]:
    encoder = TextChunkEncoder(request)
    frames = [frame for item in items for frame in encoder.frames([item])]
    assert frames.pop() == b"data: [DONE]\n\n"
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    return chunks


def completed(items: list[CallItem], request: DecodedCompletion) -> Any:
    encoder = TextEncoder(request)
    encoder.add(items)
    return json.loads(encoder.body())


def choice(text: str, reason: str | None = None, index: int = 0, logprobs: Any = None) -> Any:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def test_a_stream_of_text() -> None:
    items = answered(text('a"b'), text("c"))
    chunks = streamed(items, decoded(stream_options={"include_usage": True}))
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 13
    assert [chunk["choices"] for chunk in chunks] == [
        [choice('a"b')],
        [choice("c")],
        [choice("", "length")],
    ]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert not any("usage" in chunk for chunk in streamed(items, decoded()))


def test_one_body() -> None:
    body = completed(answered(text('a"b'), text("c")), decoded())
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "m")
    assert body["choices"] == [choice('a"bc', "length")]
    assert body["usage"]["completion_tokens"] == 3


BOTH: list[CallItem] = [
    *BEFORE,
    *(text("x", 2), text("y", 0), wire.ChoiceFinished(1, 0, "stop")),
    *(wire.ChoiceFinished(1, 1, "stop"), text("z", 2), wire.ChoiceFinished(1, 2, "length")),
    *(wire.ChoiceFinished(1, 3, "stop"), FINISHED),
]


def test_choices_of_several_prompts_with_their_echo() -> None:
    request = decoded(["one ", "two "], n=2, echo=True)
    assert completed(BOTH, request)["choices"] == [
        choice("one y", "stop", 0),
        choice("one ", "stop", 1),
        choice("two xz", "length", 2),
        choice("two ", "stop", 3),
    ]
    chunks = [chunk["choices"][0] for chunk in streamed(BOTH, request)]
    assert [(chunk["index"], chunk["text"], chunk["finish_reason"]) for chunk in chunks] == [
        *((2, "two ", None), (2, "x", None), (0, "one ", None), (0, "y", None), (0, "", "stop")),
        *((1, "one ", None), (1, "", "stop"), (2, "z", None), (2, "", "length")),
        *((3, "two ", None), (3, "", "stop")),
    ]


TOKENS = (
    wire.TokenLogprob("ab", -0.5, (("ab", -0.5), ("a", -1.5))),
    wire.TokenLogprob("c", float("-inf")),
)


def test_log_probabilities_are_lists_by_property() -> None:
    first, second = (wire.TextDelta(1, 0, token.token, (token,)) for token in TOKENS)
    items, request = answered(first, second), decoded(logprobs=2)
    assert completed(items, request)["choices"][0]["logprobs"] == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"ab": -0.5, "a": -1.5}, {}],
        "text_offset": [0, 2],
    }
    chunks = [chunk["choices"][0]["logprobs"] for chunk in streamed(items, request)]
    assert [chunk and chunk["text_offset"] for chunk in chunks] == [[0], [2], None]
