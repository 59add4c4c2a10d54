"""Places, settings and the budget: pure functions of environment, platform and machine."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.registry.env import EnvError, substitute
from gateway.registry.load import load
from gateway.registry.places import config_path, places, user_config
from gateway.registry.schema import Entry, Manager, Server, reload_of
from gateway.registry.settings import server_settings
from gateway.registry.units import GIB, budget_bytes, format_size, parse_size


def test_places_on_linux() -> None:
    found = places({"HOME": "/u"}, "linux")
    assert found.state == Path("/u/.local/state/mlx-gateway")
    assert found.cache == Path("/u/.cache/mlx-gateway")
    assert found.logs == found.state / "logs"
    assert found.run == found.state / "run"
    assert found.address == found.run / "address"
    xdg = places({"HOME": "/u", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "relative"}, "linux")
    assert (xdg.state, xdg.cache) == (Path("/s/mlx-gateway"), Path("/u/.cache/mlx-gateway"))


def test_places_on_a_mac() -> None:
    found = places({"HOME": "/u", "XDG_STATE_HOME": "/s"}, "darwin")
    assert found.state == Path("/u/Library/Application Support/mlx-gateway")
    assert found.cache == Path("/u/Library/Caches/mlx-gateway")
    assert found.logs == Path("/u/Library/Logs/mlx-gateway")


def test_one_variable_moves_the_state() -> None:
    found = places({"HOME": "/u", "MLX_GATEWAY_STATE_DIR": "/t"}, "darwin")
    assert (found.state, found.logs, found.run) == (Path("/t"), Path("/t/logs"), Path("/t/run"))


def test_places_are_for_this_user_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    found = places({"HOME": str(tmp_path), "MLX_GATEWAY_STATE_DIR": str(state)}, "linux")
    found.make()
    found.make()
    for folder in (found.state, found.cache, found.logs, found.run):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_config_is_looked_for_in_order() -> None:
    environ = {"HOME": "/u", "MLX_GATEWAY_CONFIG": "/e.yaml"}
    folder, local, user = (
        Path("/w"),
        Path("/w/registry.yaml"),
        Path("/u/.config/mlx-gateway/registry.yaml"),
    )
    there = {local, user}

    def found(flag: str | None, environ: dict[str, str]) -> Path | None:
        return config_path(flag, environ, folder=folder, exists=there.__contains__)

    assert found("f.yaml", environ) == Path("/w/f.yaml")
    assert found(None, environ) == Path("/e.yaml")
    assert found(None, {"HOME": "/u"}) == local
    there.remove(local)
    assert found(None, {"HOME": "/u"}) == user == user_config({"HOME": "/u"})
    there.remove(user)
    assert found(None, {"HOME": "/u"}) is None
    assert user_config({"HOME": "/u", "XDG_CONFIG_HOME": "/c"}) == Path(
        "/c/mlx-gateway/registry.yaml"
    )


def test_flag_before_variable_before_file_before_default() -> None:
    file = Server(port=1, host="file", drain_s=3)
    environ = {"MLX_GATEWAY_PORT": "2", "MLX_GATEWAY_HOST": "variable", "MLX_GATEWAY_LOG_LEVEL": ""}
    server, problems = server_settings(file, flags={"port": 4, "host": None}, environ=environ)
    assert problems == ()
    assert (server.port, server.host, server.drain_s) == (4, "variable", 3)
    assert (server.log_level, server.heartbeat_s) == ("info", 10)


def test_wrong_settings_change_nothing_and_say_where_they_come_from() -> None:
    environ = {"MLX_GATEWAY_LOG_LEVEL": "wrning", "MLX_GATEWAY_DRAIN_S": "soon"}
    server, problems = server_settings(Server(), flags={"port": 70000}, environ=environ)
    assert server == Server()
    assert [str(problem) for problem in problems] == [
        "error: command line: --port: expected a whole number from 0 to 65535; found 70000",
        "error: environment: MLX_GATEWAY_DRAIN_S: expected a number from 0 to 31536000; "
        "found 'soon'",
        "error: environment: MLX_GATEWAY_LOG_LEVEL: expected one of "
        '"debug", "info", "warning", "error"; found \'wrning\'; did you mean "warning"?',
    ]


@pytest.mark.parametrize(
    ("asked", "total", "ceiling", "budget"),
    [
        ("auto", 128, 96, 96),
        ("auto", 128, 120, 128 * 0.85),
        ("auto", 16, 16, 12),
        ("auto", 4, 4, 1),
        (80.0, 128, 96, 80),
        (96.0, 128, 96, 96),
    ],
)
def test_budget(asked: float | str, total: int, ceiling: int, budget: float) -> None:
    manager = Manager(memory_budget_gb="auto" if isinstance(asked, str) else asked)
    found, warning = budget_bytes(manager, total * GIB, ceiling * GIB)
    assert found == pytest.approx(budget * GIB, abs=1)
    assert warning is None


def test_a_budget_above_the_ceiling_is_clamped_and_both_are_named() -> None:
    found, warning = budget_bytes(Manager(memory_budget_gb=200), 128 * GIB, 96 * GIB)
    assert found == 96 * GIB
    assert warning is not None
    assert "200.0 GiB" in warning
    assert "96.0 GiB" in warning


def test_only_scripted_models_may_have_more_than_the_machine(tmp_path: Path) -> None:
    machine = SimpleNamespace(total_bytes=16 * GIB, ceiling_bytes=12 * GIB)
    file = tmp_path / "registry.yaml"
    file.write_text("manager: {memory_budget_gb: 64}\nmodels: [{name: a, engine: scripted}]\n")
    scripted = load(file, environ={}, machine=machine)
    assert (scripted.budget_bytes, scripted.problems) == (64 * GIB, ())
    file.write_text("manager: {memory_budget_gb: 64}\nmodels: [{name: a, path: x}]\n")
    real = load(file, environ={}, machine=machine)
    assert (real.configured_budget_bytes, real.budget_bytes) == (64 * GIB, 12 * GIB)
    assert real.problems[0].key == "manager.memory_budget_gb"
    file.write_text("models: [{name: a, engine: scripted}]\n")
    auto = load(file, environ={}, machine=machine)
    assert auto.budget_bytes == auto.configured_budget_bytes == 12 * GIB


def test_sizes_for_people() -> None:
    assert format_size(GIB * 3 // 2) == "1.5 GiB"
    assert format_size(300 * 2**20) == "300.0 MiB"
    assert parse_size(1.5) == parse_size("1.5") == parse_size("1536MB") == GIB * 3 // 2


def test_references() -> None:
    environ = {"A": "1", "EMPTY": "", "NESTED": "${env:A}"}
    assert substitute("x${env:A}y${env:A}", environ) == "x1y1"
    assert substitute("${env:EMPTY}|${env:EMPTY:-d}|${env:NO:-}", environ) == "|d|"
    assert substitute("${env:NESTED}", environ) == "${env:A}"
    assert substitute("$A ${A} $${x}", environ) == "$A ${A} $${x}"
    for text in ("${env:NO}", "${env:}", "${env:A", "${env:1A}", "${env:A-b}"):
        with pytest.raises(EnvError):
            substitute(text, environ)


def test_what_a_change_costs() -> None:
    restart = (
        "path source model kind mllm engine scripted context_length trust_remote_code env "
        "enable_mtp"
    )
    assert {reload_of(Entry, key) for key in restart.split()} == {"restart"}
    live = (
        "ttl_s pin priority max_concurrency temperature chat_template_kwargs aliases kv_memory_gb"
    )
    assert {reload_of(Entry, key) for key in live.split()} == {"live"}
    assert reload_of(Server, "port") == "restart"
    assert reload_of(Manager, "memory_budget_gb") == "live"
    with pytest.raises(KeyError):
        reload_of(Entry, "nothing")
