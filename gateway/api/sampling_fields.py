"""The sampling fields of the OpenAI dialects, and how a model's own defaults complete them."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import Meta

from engines import wire
from gateway.api.dialect import Defaults
from gateway.api.service_fields import ServiceFields

MAX_BIASES = 1024

Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]

_T = TypeVar("_T")


class SamplingFields(ServiceFields, frozen=True, kw_only=True):
    """What a request may say about how tokens are drawn; null means not given.

    `top_k` -1 is 0, off, as several servers spell it.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: (
        Annotated[
            dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)
        ]
        | None
    ) = None


def sampling(fields: SamplingFields, defaults: Defaults) -> wire.Sampling:
    """The request's word, else the model's, else the dialect's own default."""
    return wire.Sampling(
        temperature=given(fields.temperature, defaults.temperature, 1.0),
        top_p=given(fields.top_p, defaults.top_p, 1.0),
        top_k=max(0, given(fields.top_k, defaults.top_k, 0)),
        min_p=given(fields.min_p, defaults.min_p, 0.0),
        seed=fields.seed,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=given(fields.repetition_penalty, None, 1.0),
        logit_bias=fields.logit_bias or {},
    )


def given(first: _T | None, second: _T | None, last: _T) -> _T:
    """The first of them that was given."""
    if first is not None:
        return first
    return last if second is None else second


def merged(defaults: Defaults, kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Arguments of the chat template: the model's, where the request does not name the same."""
    return {**defaults.template_kwargs, **(kwargs or {})}
