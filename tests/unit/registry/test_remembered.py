"""What loads measured: kept, bounded, preferred, and never in the way."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from engines.wire import Memory
from gateway.registry import remembered as module
from gateway.registry.find import Model, find, recheck
from gateway.registry.limits import MOST_PROCESS_BYTES, PROCESS_BYTES, limits
from gateway.registry.load import load
from gateway.registry.remembered import Measured, Remembered
from gateway.registry.schema import Entry, Kind
from gateway.registry.sizes import Size
from gateway.registry.units import GIB, MIB
from tests.unit.registry.test_sizes import LLAMA, write_model


def model(fingerprint: str = "f", kind: Kind = "text", **keys: Any) -> Model:
    size = Size(weights_bytes=10 * GIB, kind=kind, fingerprint=fingerprint)
    return Model(entry=Entry(name="a", path="/x", kind=kind, **keys), size=size)


def measured_by(memory: Memory, load_s: float = 2.0) -> Measured | None:
    sizes = Remembered(Path("/nowhere/sizes.json"))
    sizes.record(model(), memory, load_s)
    return sizes.get(model())


def test_sizes_survive_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    sizes = Remembered(file)
    assert sizes.read() is None
    assert sizes.record(model(), Memory(weights_bytes=9 * GIB, process_bytes=10 * GIB), 2.5)
    assert sizes.save() is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [child.name for child in tmp_path.iterdir()] == ["sizes.json"]
    again = Remembered(file)
    assert again.read() is None
    assert again.get(model()) == Measured(weights_bytes=9 * GIB, overhead_bytes=GIB, load_s=2.5)
    assert again.get(model(fingerprint="other")) is None
    assert again.get(model(kind="vision")) is None


@pytest.mark.parametrize(
    ("memory", "overhead"),
    [
        (Memory(weights_bytes=5, process_bytes=12), 7),
        (Memory(5, kv_bytes=1, prompt_cache_bytes=2, mlx_cache_bytes=3, process_bytes=12), 1),
        (Memory(weights_bytes=5, process_bytes=0), 0),
        (Memory(weights_bytes=5, process_bytes=4), 0),
    ],
)
def test_overhead_is_what_no_class_explains(memory: Memory, overhead: int) -> None:
    found = measured_by(memory)
    assert found is not None
    assert found.overhead_bytes == overhead


def test_what_says_nothing_is_not_remembered() -> None:
    assert measured_by(Memory(weights_bytes=0, process_bytes=GIB)) is None
    sizes = Remembered(Path("/nowhere/sizes.json"))
    memory = Memory(weights_bytes=5)
    script = find(Entry(name="a", engine="scripted"), base=Path(), environ={})
    missing = Model(entry=Entry(name="a", path="/x", kind="text"), unavailable="gone")
    for each in (script, missing, model(fingerprint="")):
        assert not sizes.record(each, memory, 1)
        assert sizes.get(each) is None


def test_only_news_is_worth_a_write() -> None:
    sizes = Remembered(Path("/nowhere/sizes.json"))
    assert sizes.record(model(), Memory(weights_bytes=1000, process_bytes=2000), 1)
    assert not sizes.record(model(), Memory(weights_bytes=1000, process_bytes=2005), 9)
    assert sizes.record(model(), Memory(weights_bytes=1000, process_bytes=2500), 9)
    assert sizes.record(model(), Memory(weights_bytes=1100, process_bytes=2600), 9)


def test_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    sizes = Remembered(tmp_path / "sizes.json")
    for name in ("a", "b", "c", "a", "d"):
        sizes.record(model(name), Memory(weights_bytes=5), 1)
    assert sizes.save() is None
    again = Remembered(tmp_path / "sizes.json")
    assert again.read() is None
    for each in (sizes, again):
        assert [name for name in "abcd" if each.get(model(name))] == ["a", "c", "d"]


def test_a_full_file_stays_readable(tmp_path: Path) -> None:
    sizes = Remembered(tmp_path / "sizes.json")
    for number in range(module.MAX_ENTRIES + 1):
        memory = Memory(weights_bytes=2**49, process_bytes=2**50)
        sizes.record(model(f"{number:032x}"), memory, 12345.678901234567)
    assert sizes.save() is None
    assert (tmp_path / "sizes.json").stat().st_size < module.MAX_BYTES // 10
    assert Remembered(tmp_path / "sizes.json").read() is None


GOOD = {"weights_bytes": 5, "overhead_bytes": 1, "load_s": 1.0}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "replaced after the next load"),
        (b"\xff\xfe", "replaced"),
        (b"[1]", "replaced"),
        (b"[" * 100_000, "replaced"),
        (json.dumps({"version": 2, "sizes": {}}).encode(), "version 2, not 1"),
        (json.dumps({"version": 1, "sizes": {"f-text": {}}}).encode(), "replaced"),
        (
            json.dumps({"version": 1, "sizes": {"f-text": GOOD | {"weights_bytes": -1}}}).encode(),
            "replaced",
        ),
        (
            json.dumps({"version": 1, "sizes": {"f-text": GOOD | {"load_s": 1e300}}}).encode(),
            "replaced",
        ),
    ],
)
def test_a_file_that_is_broken_is_ignored(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "sizes.json"
    file.write_bytes(content)
    sizes = Remembered(file)
    assert reason in (sizes.read() or "")
    assert sizes.get(model()) is None
    assert sizes.record(model(), Memory(weights_bytes=5), 1)
    assert sizes.save() is None
    assert Remembered(file).read() is None


def test_a_folder_in_its_place_is_ignored(tmp_path: Path) -> None:
    sizes = Remembered(tmp_path)
    assert "is ignored" in (sizes.read() or "")


def test_trouble_with_writing_is_told_once(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    sizes = Remembered(folder / "sizes.json")
    sizes.record(model(), Memory(weights_bytes=5), 1)
    assert "cannot be written (No such file or directory)" in (sizes.save() or "")
    assert sizes.save() is None
    assert sizes.failed_saves == 2
    folder.mkdir()
    assert sizes.save() is None
    assert sizes.failed_saves == 2
    (folder / "sizes.json").unlink()
    (folder / "sizes.json").mkdir()
    assert "cannot be written" in (sizes.save() or "")
    assert [child.name for child in folder.iterdir()] == ["sizes.json"]
    assert sizes.get(model()) is not None


# --- how they count -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "weights"),
    [
        (20 * GIB, 20 * GIB),  # float16 that is cast to float32 at load
        (round(9.8 * GIB), round(9.8 * GIB)),
        (1 * GIB, round(9.5 * GIB)),
    ],
)
def test_measured_weights_are_preferred(measured: int, weights: int) -> None:
    given = limits(model(), 100 * GIB, Measured(weights_bytes=measured))
    assert given.weights_bytes == weights
    assert given.mlx_cache_bytes == min(GIB, weights // 20)


def test_an_estimate_stands_above_a_measurement() -> None:
    asked = model(estimated_memory_gb=12.0)
    assert limits(asked, 100 * GIB, Measured(weights_bytes=11 * GIB)).weights_bytes == 12 * GIB


@pytest.mark.parametrize(
    ("measured", "process"),
    [(0, PROCESS_BYTES), (400 * MIB, 400 * MIB), (9 * GIB, MOST_PROCESS_BYTES)],
)
def test_measured_overhead_counts_within_bounds(measured: int, process: int) -> None:
    plain = limits(model(kind="embedding"), 100 * GIB)
    last = Measured(weights_bytes=10 * GIB, overhead_bytes=measured)
    given = limits(model(kind="embedding"), 100 * GIB, last)
    assert given.charge_bytes - plain.charge_bytes == process - PROCESS_BYTES


def test_a_script_is_charged_what_it_claims_whatever_is_remembered() -> None:
    script = find(Entry(name="a", engine="scripted"), base=Path(), environ={})
    assert limits(script, GIB, Measured(weights_bytes=GIB)).charge_bytes == 0


def test_warnings_about_room_go_by_what_was_measured(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    file = tmp_path / "r.yaml"
    file.write_text(
        "manager: {memory_budget_gb: 2}\nmodels: [{name: a, path: m, kind: embedding}]\n"
    )
    loaded = load(file, environ={})
    assert loaded.problems == ()
    sizes = Remembered(tmp_path / "sizes.json")
    sizes.record(loaded.models[0], Memory(weights_bytes=3 * GIB), 1)
    (problem,) = load(file, environ={}, remembered=sizes).problems
    assert '"a" needs 3.5 GiB, more than the budget of 2.0 GiB' in problem.message


# --- availability ---------------------------------------------------------------------------------


def test_recheck_sees_files_come_change_and_go(tmp_path: Path) -> None:
    def again(before: Model) -> Model:
        return recheck(before, base=tmp_path, environ={})

    missing = find(Entry(name="a", path="m"), base=tmp_path, environ={})
    assert missing.unavailable == f"no such folder: {tmp_path}/m"
    assert again(missing) == missing
    write_model(tmp_path / "m", LLAMA | {"vision_config": {}})
    there = again(missing)
    assert (there.unavailable, there.entry.kind, there.kind_detected) == (None, "vision", True)
    assert again(there) == there
    (tmp_path / "m" / "model.safetensors").unlink()
    assert "no weights" in (again(there).unavailable or "")


def test_recheck_keeps_a_kind_that_the_operator_gave(tmp_path: Path) -> None:
    missing = find(Entry(name="a", path="m", kind="embedding"), base=tmp_path, environ={})
    write_model(tmp_path / "m")
    there = recheck(missing, base=tmp_path, environ={})
    assert (there.unavailable, there.entry.kind, there.kind_detected) == (None, "embedding", False)


def test_recheck_of_a_script_changes_nothing() -> None:
    script = find(Entry(name="a", engine="scripted"), base=Path(), environ={})
    assert recheck(script, base=Path(), environ={}) == script
