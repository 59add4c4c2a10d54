"""What is kept of images: within its bytes, found by content, computed once."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engines import wire
from engines.vision.features import CachedTower, FeatureCache

VALUE_BYTES = 4


def features(values: int) -> Any:
    made = mx.zeros((values,))
    mx.eval(made)
    return made


def test_the_least_recently_used_leave_first() -> None:
    cache = FeatureCache(limit_bytes=10 * VALUE_BYTES)
    for name in ("a", "b"):
        cache.put((name,), features(4))
    assert cache.get(("a",)) is not None
    cache.put(("c",), features(4))
    assert [cache.get((name,)) is not None for name in "abc"] == [True, False, True]
    assert cache.stats() == wire.FeatureCacheStats(2, 8 * VALUE_BYTES, hits=3, misses=1)


@pytest.mark.parametrize(
    ("value", "size"),
    [(features(3), 3), ([features(2), features(1)], 3), ((features(2), [features(4)]), 6)],
)
def test_every_shape_of_features_has_its_bytes(value: Any, size: int) -> None:
    cache = FeatureCache(100)
    cache.put(("a", "b"), value)
    assert cache.nbytes == size * VALUE_BYTES
    cache.put(("a", "b"), value)
    assert cache.nbytes == size * VALUE_BYTES
    assert cache.clear() == (1, size * VALUE_BYTES)
    assert cache.nbytes == 0


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    cache = FeatureCache(8)
    cache.put(("a",), features(2))
    cache.put(("b",), features(3))
    assert cache.get(("b",)) is None
    assert cache.get(("a",)) is not None
    cache.set_limit(4)
    assert cache.stats().entries == 0


class Tower:
    """Doubles what it gets, and counts."""

    depth = 7

    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []

    def __call__(self, pixels: Any, grid: Any = None, **options: Any) -> Any:
        self.seen.append((pixels.shape[0], options))
        return pixels * 2


GRID = mx.array([[1, 1, 2], [1, 1, 3]])
PATCHES = mx.arange(10).reshape(5, 2)


def test_patches_of_a_grid_go_image_by_image() -> None:
    tower = Tower()
    cached = CachedTower(tower, FeatureCache(1000))
    with cached.naming(("a", "b")):
        whole = cached(PATCHES, GRID, deep=True)
    assert mx.array_equal(whole, PATCHES * 2)
    assert tower.seen == [(2, {"deep": True}), (3, {"deep": True})]
    swapped = mx.concatenate([PATCHES[2:], PATCHES[:2]])
    with cached.naming(("b", "a")):
        again = cached(swapped, GRID[::-1], deep=True)
    assert mx.array_equal(again, swapped * 2)
    assert len(tower.seen) == 2
    with cached.naming(("c",)):
        cached(PATCHES[:2], GRID[:1])
    assert len(tower.seen) == 3
    assert cached.depth == 7


@pytest.mark.parametrize(
    "given",
    [
        (mx.zeros((2, 3, 4, 4)),),
        (PATCHES, GRID[:1]),
        (PATCHES, mx.array([[1, 1, 2], [1, 1, 9]])),
        (mx.zeros((2, 5, 2)), GRID),
    ],
)
def test_any_other_batch_of_images_is_one(given: tuple[Any, ...]) -> None:
    tower = Tower()
    cached = CachedTower(tower, FeatureCache(1000))
    for names in (("a", "b"), ("a", "b"), ("b", "a")):
        with cached.naming(names):
            cached(*given)
    assert [count for count, _ in tower.seen] == [given[0].shape[0]] * 2


def test_a_tower_that_is_called_twice_for_one_prompt() -> None:
    """As with tiles of an image, and then the whole of it."""
    tower, tiles, whole = Tower(), mx.zeros((4, 3, 2, 2)), mx.ones((1, 3, 2, 2))
    cached = CachedTower(tower, FeatureCache(1000))
    for _ in range(2):
        with cached.naming(("a",)):
            assert mx.array_equal(cached(tiles), tiles * 2)
            assert mx.array_equal(cached(whole), whole * 2)
    assert len(tower.seen) == 2


def test_without_names_nothing_is_kept() -> None:
    tower, cache = Tower(), FeatureCache(1000)
    cached = CachedTower(tower, cache)
    for _ in range(2):
        with cached.naming(()):
            cached(PATCHES, GRID)
    cached(PATCHES, GRID)
    assert len(tower.seen) == 3
    assert cache.stats() == wire.FeatureCacheStats()


def test_the_limit_holds_for_what_a_tower_makes() -> None:
    tower, cache = Tower(), FeatureCache(6 * VALUE_BYTES)
    cached = CachedTower(tower, cache)
    with cached.naming(("a", "b")):
        cached(PATCHES, GRID)
    assert (cache.stats().entries, cache.nbytes) == (1, 6 * VALUE_BYTES)


def test_features_of_several_layers_are_joined_layer_by_layer() -> None:
    cached = CachedTower(lambda pixels, grid: (pixels, [pixels + 1]), FeatureCache(1000))
    for _ in range(2):
        with cached.naming(("a", "b")):
            last, (deep,) = cached(PATCHES, GRID)
        assert mx.array_equal(last, PATCHES)
        assert mx.array_equal(deep, PATCHES + 1)
