"""What the vision tower made of images, kept in bytes and found again by the images' content.

`FeatureCache` is the one owner of what is kept: least recently used first out, within a limit in
bytes. `CachedTower` stands in a model where its vision tower was, because that is the one place
which every family of mlx-vlm goes through; whatever the model does with the features afterwards is
left to it. An image is known by the hash of its file and what was done to it; the settings of the
processor are those of the model, so one process never sees two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx

from engines import wire

Key = tuple[str, ...]
"""Images whose features come out of one pass of the tower together, in order."""


class FeatureCache:
    """Features by key. One that is larger than the whole limit is not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    def get(self, key: Key) -> Any | None:
        """The features, counted as a hit or a miss for each image of the key."""
        found = self._kept.get(key)
        if found is None:
            self._misses += len(key)
            return None
        self._hits += len(key)
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Key, features: Any) -> None:
        """Keeps evaluated features: mx.arrays, or lists and tuples of them."""
        size = _nbytes(features)
        self._drop(key)
        if size <= self._limit:
            self._kept[key] = (features, size)
            self._bytes += size
            self._shrink()

    def set_limit(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._shrink()

    def clear(self) -> tuple[int, int]:
        """Drops everything; returns how many entries and bytes that were."""
        gone = len(self._kept), self._bytes
        self._kept.clear()
        self._bytes = 0
        return gone

    @property
    def nbytes(self) -> int:
        return self._bytes

    def stats(self) -> wire.FeatureCacheStats:
        return wire.FeatureCacheStats(len(self._kept), self._bytes, self._hits, self._misses)

    def _shrink(self) -> None:
        while self._bytes > self._limit:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        _, size = self._kept.pop(key, (None, 0))
        self._bytes -= size


class CachedTower:
    """A vision tower that computes nothing twice for images it is told the names of.

    `tower` takes pixel values and what its family wants beside them. Outside of `naming` it is
    called as it is. Families that hand over the patches of all images in one array [patches, size]
    with a grid [images, 3] go image by image; any other batch of images is one key. Some families
    call their tower several times for one prompt, such as for tiles and for the whole image: each
    call has keys of its own.
    """

    def __init__(self, tower: Callable[..., Any], cache: FeatureCache) -> None:
        self._tower = tower
        self._cache = cache
        self._names: Key = ()
        self._calls = 0
        """Within the current `naming`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tower, name)

    @contextmanager
    def naming(self, names: Sequence[str]) -> Iterator[None]:
        """Within it, pixel values are those of the images `names`, in order."""
        self._names, self._calls = tuple(names), 0
        try:
            yield
        finally:
            self._names = ()

    def __call__(self, pixel_values: Any, *args: Any, **options: Any) -> Any:
        if not self._names:
            return self._tower(pixel_values, *args, **options)
        self._calls += 1
        spans = _spans(pixel_values, args, len(self._names))
        if spans is None:
            return self._once(self._names, partial(self._tower, pixel_values, *args, **options))
        grid, *rest = args
        each = [
            self._once(
                (name,),
                partial(self._tower, pixel_values[begin:end], grid[at : at + 1], *rest, **options),
            )
            for at, (name, (begin, end)) in enumerate(zip(self._names, spans, strict=True))
        ]
        return _merged(each)

    def _once(self, key: Key, compute: Callable[[], Any]) -> Any:
        if self._calls > 1:
            key = tuple(f"{name} call {self._calls}" for name in key)
        features = self._cache.get(key)
        if features is None:
            features = compute()
            mx.eval(features)
            self._cache.put(key, features)
        return features


def _spans(pixel_values: Any, args: Sequence[Any], images: int) -> list[tuple[int, int]] | None:
    """Where the patches of each image are, None where images cannot be told apart."""
    grid = args[0] if args else None
    if not isinstance(grid, mx.array) or grid.shape != (images, 3) or pixel_values.ndim != 2:
        return None
    spans, begin = [], 0
    for frames, height, width in _rows(grid):
        end = begin + frames * height * width
        spans.append((begin, end))
        begin = end
    return spans if begin == pixel_values.shape[0] else None


def _merged(each: Sequence[Any]) -> Any:
    """Features [tokens, size] of several images as one; also lists of such, layer by layer."""
    if len(each) == 1:
        return each[0]
    if isinstance(each[0], list | tuple):
        return type(each[0])(_merged(layer) for layer in zip(*each, strict=True))
    return mx.concatenate(list(each), axis=0)


def _rows(grid: Any) -> list[list[int]]:
    rows: list[list[int]] = grid.tolist()
    return rows


def _nbytes(features: Any) -> int:
    if isinstance(features, list | tuple):
        return sum(map(_nbytes, features))
    return int(getattr(features, "nbytes", 0))
