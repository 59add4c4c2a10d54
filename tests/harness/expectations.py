"""Judges the record of a timeline: what the case expects, and what holds for every case."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.harness.daemon import reply
from tests.harness.observe import GIB
from tests.harness.timeline import Case, Fate, Record, Result

SLACK = 1.2
"""Expected times may take so much longer; the machine is shared."""


def compare(case: Case, record: Record) -> list[str]:
    """Everything that is not as it should be, in words."""
    return [
        *_always(record),
        *_answers(case, record),
        *_times(case, record),
        *_streams(case, record),
        *_counts(case, record),
        *_transitions(case, record),
    ]


def _always(record: Record) -> Iterator[str]:
    """No lease is left, the ledger holds what lives, no process is left over."""
    memory, models = record.end["memory"], record.end["models"]
    charges = sum(model["charge_bytes"] for model in models)
    if memory["committed_bytes"] != charges:
        yield f"committed are {memory['committed_bytes']}, but the charges sum to {charges}"
    measured = sum(model["measured_bytes"] for model in models)
    claimed = sum(round(m["entry"]["scripted"].get("size_gb", 0) * GIB) for m in models if m["pid"])
    if abs(measured - claimed) > claimed * 0.1:
        yield f"measured are {measured} bytes, and the living engines claim {claimed}"
    known = {model["pid"] for model in models if model["pid"] is not None}
    if record.engine_pids != known:
        yield f"the status knows pids {sorted(known)}; alive are {sorted(record.engine_pids)}"
    yield from record.strays


def _answers(case: Case, record: Record) -> Iterator[str]:
    expect = case.expect
    for name, wanted in expect.status.items():
        status = record.results[name].status
        if status not in (wanted if isinstance(wanted, tuple) else (wanted,)):
            yield f"{name}: status {status}, not {wanted}: {record.results[name].body[:300]}"
    for name, pattern in expect.errors.items():
        said = error_line(record.results[name])
        if not re.search(pattern, said):
            yield f"{name}: the error is {said!r}, which is not /{pattern}/"
    for name, headers in expect.headers.items():
        for header, pattern in headers.items():
            value = record.results[name].headers.get(header, "(absent)")
            if not re.search(pattern, value):
                yield f"{name}: header {header} is {value!r}, which is not /{pattern}/"


def error_line(result: Result) -> str:
    """`code: message` of an answer's error, or of a stream's error event; else what was said."""
    if result.stream is not None:
        error = result.stream.error or {"code": "", "message": "(complete)"}
    else:
        error = json.loads(result.body or "{}").get("error", {})
    return f"{error.get('code')}: {error.get('message', result.body)}"


def _times(case: Case, record: Record) -> Iterator[str]:
    for name, limit in case.expect.within_s.items():
        result = record.results[name]
        took = result.ended - result.began
        if took > limit * SLACK:
            yield f"{name}: took {took:.2f} s, more than {limit} s"


def _streams(case: Case, record: Record) -> Iterator[str]:
    for name, fate in case.expect.streams.items():
        result = record.results[name]
        if result.stream is None:
            yield f"{name}: no stream, but status {result.status}: {result.body[:300]}"
            continue
        yield from (f"{name}: {fault}" for fault in _stream_faults(result, fate))
        if fate.of is None:
            continue
        after = result.ended - record.results[fate.of].ended
        if fate.within_s is not None and after > fate.within_s * SLACK:
            yield f"{name}: ended {after:.2f} s after {fate.of}, not within {fate.within_s} s"
        if fate.not_before_s is not None and after < fate.not_before_s:
            yield f"{name}: ended {after:.2f} s after {fate.of}, before {fate.not_before_s} s"


def _stream_faults(result: Result, fate: Fate) -> Iterator[str]:
    stream = result.stream
    assert stream is not None
    code = stream.error["code"] if stream.error else None
    if code != fate.error:
        yield f"ended with the error {stream.error}, not {fate.error}"
    if fate.error is not None and (stream.done or stream.finish_reasons):
        yield f"failed, but with {stream.finish_reasons} and done {stream.done}"
    if fate.error is None and (not stream.done or len(stream.finish_reasons) != 1):
        yield f"not complete: {stream.finish_reasons}, done {stream.done}"
    tokens = len(stream.text.split())
    if stream.text != reply(tokens):
        yield f"words are missing or out of order: {stream.text[:200]!r}"
    if fate.tokens is not None and tokens != fate.tokens:
        yield f"{tokens} tokens, not {fate.tokens}"


def _counts(case: Case, record: Record) -> Iterator[str]:
    expect = case.expect
    for what, wanted, found in (
        ("loads", expect.loads, record.loads),
        ("evictions", expect.evictions, record.evictions),
        ("crashes", expect.crashes, record.crashes),
        ("reloads", expect.reloads, record.reloads),
    ):
        for name, count in wanted.items():
            if found.get(name, 0) != count:
                yield f"{what} of {name}: {found.get(name, 0):g}, not {count}"
    for name, most in expect.loads_at_most.items():
        if record.loads.get(name, 0) > most:
            yield f"{name} was loaded {record.loads[name]} times, more than {most}"
    if expect.peak_gb is not None:
        seen = record.observer
        for what, peak in (("reserved", seen.peak_bytes), ("claimed", seen.peak_claims)):
            if peak > expect.peak_gb * GIB:
                yield f"{what} at the peak: {peak / GIB:.2f} GiB, more than {expect.peak_gb}"


def _transitions(case: Case, record: Record) -> Iterator[str]:
    """`order` has to occur in this order, with anything between."""
    seen = record.observer.transitions
    rest = iter(seen)
    for wanted in case.expect.order:
        if wanted not in rest:
            yield f"no {wanted!r} in its place; what happened: {seen}"
            return
    for unwanted in case.expect.never:
        if any(re.fullmatch(unwanted, moved) for moved in seen):
            yield f"{unwanted!r} must not happen; what happened: {seen}"
