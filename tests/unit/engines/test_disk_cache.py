"""Prompts on disk: what is read is what was written, within bounds, and bad files are removed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from engines import wire
from engines.text import disk_cache, layer_file
from engines.text.disk_cache import DiskCache
from engines.text.layer_file import FORMAT, BadFile, read_label, read_layers
from engines.text.prompt_cache import Layers, pack
from engines.text.tiers import IDLE_S, PATIENCE_S, WINDOW_S, PromptTiers

PROMPT = list(range(100, 200))


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Plain:
    """Layers of a class that no file can name."""

    nbytes = 8
    state = ()

    def is_trimmable(self) -> bool:
        return True


def filled(layer: Any, tokens: int, dtype: Any = mx.float32) -> Any:
    values = mx.random.normal((1, 2, tokens, 4)).astype(dtype)
    layer.update_and_fetch(values, values + 1)
    return layer


def plain(tokens: int = len(PROMPT)) -> Layers:
    return [filled(KVCache(), tokens), filled(KVCache(), tokens, mx.bfloat16)]


def mixed(tokens: int = len(PROMPT)) -> Layers:
    state = ArraysCache(2)
    state[0] = mx.random.normal((1, 3, 5))
    parts = CacheList(filled(KVCache(), tokens), filled(RotatingKVCache(8, keep=2), tokens))
    return [state, parts, filled(RotatingKVCache(16), tokens)]


def opened(
    folder: Path,
    *,
    fingerprint: str = "f",
    max_bytes: int = 2**24,
    max_age_s: float = 100.0,
    clock: Callable[[], float] | None = None,
) -> DiskCache:
    given = wire.DiskCache(str(folder), fingerprint, max_bytes, max_age_s)
    return DiskCache(given) if clock is None else DiskCache(given, clock)


def written(disk: DiskCache, tokens: list[int], layers: Layers) -> bool:
    writing = disk.begin(pack(tokens), layers)
    if writing is None:
        return False
    while not writing.advance():
        pass
    return True


def leaves(layers: Layers) -> list[Any]:
    return [
        (name, leaf.tolist() if isinstance(leaf, mx.array) else leaf)
        for name, leaf in tree_flatten([layer.state for layer in layers])
    ]


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


@pytest.mark.parametrize("make", [plain, mixed])
def test_another_process_reads_what_was_written(tmp_path: Path, make: Callable[[], Layers]) -> None:
    folder, layers = tmp_path / "prompts" / "m", make()
    assert written(opened(folder), PROMPT, layers)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert the_file(folder).stat().st_mode & 0o777 == 0o600
    disk = opened(folder)
    found = disk.find(pack([*PROMPT, 1]), 64)
    assert found is not None
    stored, usable = found
    assert usable == len(PROMPT)
    loaded = disk.load(stored)
    assert loaded is not None
    assert [type(layer) for layer in loaded] == [type(layer) for layer in layers]
    assert leaves(loaded) == leaves(layers)
    assert stored.label.nbytes == sum(layer.nbytes for layer in layers) + 4 * len(PROMPT)
    assert (disk.entries, disk.hits, disk.bad_files) == (1, 1, 0)
    assert disk.nbytes == the_file(folder).stat().st_size


def test_a_file_is_written_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_file, "SLICE_BYTES", 1000)
    disk = opened(tmp_path)
    writing = disk.begin(pack(PROMPT), plain())
    assert writing is not None
    steps = 0
    while not writing.advance():
        steps += 1
        assert not list(tmp_path.glob("*.safetensors"))
    assert steps > 8
    assert read_label(the_file(tmp_path)).key == pack(PROMPT)
    assert len(read_layers(the_file(tmp_path))) == 2


def test_what_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    writing = disk.begin(pack(PROMPT), plain())
    assert writing is not None
    writing.advance()
    writing.give_up()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "prompt", "usable"),
    [
        (plain, [*PROMPT, 1], 100),
        (plain, PROMPT, 99),
        (plain, [*PROMPT[:70], 1, 2], 70),
        (plain, [*PROMPT[:63], 1, 2], None),
        (mixed, [*PROMPT, 1], 100),
        (mixed, PROMPT, None),
        (mixed, [*PROMPT[:70], 1, 2], None),
    ],
)
def test_what_is_found(
    tmp_path: Path, make: Callable[[], Layers], prompt: list[int], usable: int | None
) -> None:
    disk = opened(tmp_path)
    written(disk, PROMPT, make())
    found = disk.find(pack(prompt), 64)
    assert (found[1] if found else None) == usable


def test_the_longer_takes_the_place_of_the_shorter(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    assert written(disk, PROMPT[:80], plain(80))
    assert written(disk, PROMPT, plain())
    assert not written(disk, PROMPT[:90], plain(90))
    assert not written(disk, PROMPT, plain())
    assert read_label(the_file(tmp_path)).key == pack(PROMPT)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


def _no_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 100)


def _no_json(path: Path) -> None:
    path.write_bytes((20).to_bytes(8, "little") + b"{" * 20)


def _renamed(path: Path) -> None:
    path.rename(path.with_name("0" * 64 + ".safetensors"))


def _label(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def _no_place(path: Path) -> None:
    _label(path, lambda header: header["crc32"].update(data_offsets=[0, "x"]))


def _endless(path: Path) -> None:
    _label(path, lambda header: header["crc32"].update(data_offsets=[0, float("inf")]))


def _half_a_token(path: Path) -> None:
    """Under the name of just these bytes."""
    key = pack(PROMPT)[:-3]
    tokens = base64.b64encode(key).decode()
    _label(path, lambda header: header["__metadata__"].update(tokens=tokens))
    path.rename(path.with_name(hashlib.sha256(key).hexdigest() + ".safetensors"))


@pytest.mark.parametrize(
    "harm", [_cut, _flip, _no_header, _no_json, _renamed, _no_place, _endless, _half_a_token]
)
def test_a_bad_file_is_counted_and_removed(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    written(opened(tmp_path), PROMPT, plain())
    harm(the_file(tmp_path))
    disk = opened(tmp_path)
    found = disk.find(pack([*PROMPT, 1]), 64)
    if found is not None:
        assert disk.load(found[0]) is None
    assert (disk.entries, disk.bad_files, disk.hits) == (0, 1, 0)
    assert list(tmp_path.glob("*.safetensors")) == []


@pytest.mark.parametrize("other", ["fingerprint", "format"])
def test_files_of_something_else_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    written(opened(tmp_path), PROMPT, plain())
    if other == "format":
        monkeypatch.setattr(disk_cache, "FORMAT", FORMAT + " later")
    disk = opened(tmp_path, fingerprint="f" if other == "format" else "g")
    assert (disk.entries, disk.bad_files) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_gateway_removed_is_a_miss(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    written(disk, PROMPT, plain())
    found = disk.find(pack([*PROMPT, 1]), 64)
    assert found is not None
    the_file(tmp_path).unlink()
    assert disk.load(found[0]) is None
    assert (disk.entries, disk.bad_files) == (0, 0)


def test_a_folder_that_the_gateway_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    disk = opened(folder)
    folder.rmdir()
    assert disk.clear(lambda key: True) == (0, 0)
    assert written(disk, PROMPT, plain())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert disk.entries == 1


def test_layers_that_no_file_can_name_are_not_written(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    assert not written(disk, PROMPT, [Plain()])
    assert list(tmp_path.iterdir()) == []


def test_quantized_layers_come_back(tmp_path: Path) -> None:
    values = mx.random.normal((1, 2, 80, 64))
    layer = QuantizedKVCache(group_size=32, bits=8)
    layer.update_and_fetch(values, values)
    disk = opened(tmp_path)
    assert written(disk, PROMPT[:80], [layer])
    assert leaves(read_layers(the_file(tmp_path))) == leaves([layer])


def test_a_class_of_something_else_is_not_made(tmp_path: Path) -> None:
    written(opened(tmp_path), PROMPT, plain())
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'\\"KVCache\\"', b'\\"KVOther\\"'))
    with pytest.raises(BadFile):
        read_layers(path)


# --- bounds -----------------------------------------------------------------------------------


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    size = 30_000
    disk = opened(tmp_path, max_bytes=2 * size, clock=clock)
    talks = [[n] * 100 for n in range(3)]
    for at, talk in enumerate(talks[:2]):
        written(disk, talk, plain())
        path = next(p for p in tmp_path.glob("*") if read_label(p).key == pack(talk))
        os.utime(path, (1000 + at, 1000 + at))
    disk = opened(tmp_path, max_bytes=2 * size, clock=clock)
    first = disk.find(pack([*talks[0], 9]), 64)
    assert first is not None
    clock.now = 1010.0
    assert disk.load(first[0]) is not None
    written(disk, talks[2], plain())
    kept = {read_label(path).key[:4] for path in tmp_path.glob("*.safetensors")}
    assert kept == {pack([0]), pack([2])}
    assert disk.nbytes <= 2 * size


def test_what_is_larger_than_the_room_is_not_written(tmp_path: Path) -> None:
    disk = opened(tmp_path, max_bytes=5000)
    assert not written(disk, PROMPT, plain())
    assert list(tmp_path.iterdir()) == []


def test_the_old_are_removed(tmp_path: Path) -> None:
    written(opened(tmp_path), PROMPT, plain())
    os.utime(the_file(tmp_path), (1000, 1000))
    assert opened(tmp_path, clock=Clock(1099.0)).entries == 1
    disk = opened(tmp_path, clock=(clock := Clock(1099.0)))
    clock.now = 1101.0
    assert disk.find(pack([*PROMPT, 1]), 64) is None
    assert opened(tmp_path, clock=clock).entries == 0
    assert list(tmp_path.iterdir()) == []


def test_files_of_killed_processes_are_swept(tmp_path: Path) -> None:
    (tmp_path / "old.1.tmp").write_bytes(b"x")
    (tmp_path / "new.2.tmp").write_bytes(b"x")
    os.utime(tmp_path / "old.1.tmp", (1, 1))
    opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.2.tmp"]


def test_after_a_failed_write_it_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1000.0)
    disk = opened(tmp_path, max_age_s=1e9, clock=clock)

    def full(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        written(disk, PROMPT, plain())
    assert list(tmp_path.iterdir()) == []
    assert not written(disk, PROMPT, plain())
    clock.now += disk_cache.PAUSE_S
    assert written(disk, PROMPT, plain())


# --- both tiers -------------------------------------------------------------------------------


def tiers(folder: Path, limit: int = 2**24) -> tuple[PromptTiers, Clock]:
    clock = Clock(50.0)
    return PromptTiers(limit, lambda layers: None, opened(folder), clock), clock


def drained(prompts: PromptTiers) -> float | None:
    while (due := prompts.background()) == 0:
        pass
    return due


def test_an_idle_entry_is_written_in_the_background(tmp_path: Path) -> None:
    prompts, clock = tiers(tmp_path)
    assert prompts.background() is None
    prompts.store(PROMPT, plain())
    clock.now += 10
    assert prompts.background() == IDLE_S - 10
    clock.now += IDLE_S
    assert drained(prompts) is None
    assert prompts.stats().disk_entries == 1
    assert prompts.background() is None


def test_what_could_not_be_written_is_after_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Clock(1000.0)
    clock = Clock(50.0)
    disk = opened(tmp_path, max_age_s=1e9, clock=wall)
    prompts = PromptTiers(2**24, lambda layers: None, disk, clock)
    prompts.store(PROMPT, plain())
    prompts.store([*PROMPT[::-1]], plain())
    clock.now += IDLE_S

    def full(*given: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert drained(prompts) == disk_cache.PAUSE_S
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        wall.now += disk_cache.PAUSE_S
        assert drained(prompts) == disk_cache.PAUSE_S
    wall.now += disk_cache.PAUSE_S
    assert drained(prompts) is None
    assert prompts.stats().disk_entries == 2


def test_one_that_was_hit_twice_is_written_at_once(tmp_path: Path) -> None:
    prompts, _ = tiers(tmp_path)
    prompts.store(PROMPT, plain())
    prompts.fetch([*PROMPT, 1])
    assert prompts.background() == IDLE_S
    prompts.fetch([*PROMPT, 1])
    assert drained(prompts) is None
    assert prompts.stats().disk_entries == 1


def test_short_ones_are_not_worth_a_file(tmp_path: Path) -> None:
    prompts, clock = tiers(tmp_path)
    prompts.store(PROMPT[:20], plain(20))
    clock.now += 2 * IDLE_S
    assert prompts.background() is None
    prompts.close()
    assert list(tmp_path.iterdir()) == []


def test_a_busy_engine_writes_between_steps_after_a_while(tmp_path: Path) -> None:
    prompts, clock = tiers(tmp_path)
    prompts.store(PROMPT, plain())
    for _ in range(2):
        prompts.fetch([*PROMPT, 1])
    prompts.between_steps()
    clock.now += PATIENCE_S - 1
    prompts.between_steps()
    assert list(tmp_path.iterdir()) == []
    clock.now += 1
    for _ in range(10):
        prompts.between_steps()
    assert prompts.stats().disk_entries == 1


def test_what_is_left_at_the_end_is_written_and_read_by_the_next(tmp_path: Path) -> None:
    prompts, _ = tiers(tmp_path)
    prompts.store(PROMPT, plain())
    prompts.close()
    assert prompts.nbytes == 0
    again, _ = tiers(tmp_path)
    assert again.usable([*PROMPT, 1]) == 100
    layers, usable = again.fetch([*PROMPT, 1])
    assert layers is not None
    assert (usable, layers[0].offset) == (100, 100)
    stats = again.stats()
    assert (stats.hits, stats.disk_hits, stats.entries, stats.tokens_saved) == (1, 1, 1, 100)
    again.fetch([*PROMPT, 1])
    assert again.stats().disk_hits == 1


def test_what_is_evicted_is_written_if_it_was_of_use(tmp_path: Path) -> None:
    nbytes = sum(layer.nbytes for layer in plain()) + 400
    prompts, _ = tiers(tmp_path, 2 * nbytes)
    one, two, three = ([n] * 100 for n in range(3))
    prompts.store(one, plain())
    prompts.fetch([*one, 9])
    prompts.store(two, plain())
    prompts.store(three, plain())
    prompts.set_limit(0)
    assert prompts.stats().evictions == 3
    assert [read_label(path).key for path in tmp_path.iterdir()] == [pack(one)]


def test_little_time_is_spent_on_what_is_evicted(tmp_path: Path) -> None:
    prompts, clock = tiers(tmp_path)
    for n in range(3):
        prompts.store([n] * 100, plain())
        prompts.fetch([*[n] * 100, 9])

    def slow() -> float:
        clock.now += 0.4
        return clock.now

    prompts._clock = slow
    prompts.set_limit(0)
    assert clock.now < 50 + 3
    assert prompts.stats().disk_entries < 3
    assert not list(tmp_path.glob("*.tmp"))
    assert WINDOW_S > 3


def test_what_is_loaded_stays_within_the_limit_in_memory(tmp_path: Path) -> None:
    prompts, _ = tiers(tmp_path)
    prompts.store(PROMPT, plain())
    prompts.close()
    nbytes = sum(layer.nbytes for layer in plain()) + 400
    small, _ = tiers(tmp_path, nbytes - 1)
    assert small.fetch([*PROMPT, 1]) == (None, 0)
    assert small.nbytes == 0
    fitting, _ = tiers(tmp_path, nbytes + 10)
    fitting.store([7] * 20, [filled(KVCache(), 20)])
    assert fitting.fetch([*PROMPT, 1])[1] == 100
    assert fitting.nbytes <= nbytes + 10
    assert fitting.stats().entries == 1


def test_clearing_reaches_both_tiers(tmp_path: Path) -> None:
    prompts, clock = tiers(tmp_path)
    other = [5] * 100
    prompts.store(PROMPT, plain())
    prompts.store(other, plain())
    clock.now += 2 * IDLE_S
    drained(prompts)
    assert prompts.clear(lambda key: key.startswith(pack(PROMPT[:3])))[0] == 2
    assert prompts.usable([*PROMPT, 1]) == 0
    assert prompts.usable([*other, 1]) == 100
    assert prompts.clear()[0] == 2
    assert list(tmp_path.iterdir()) == []
