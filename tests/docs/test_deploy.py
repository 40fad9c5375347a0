"""The files of docs/deploy: they name what is there, fit each other and the server, and are what they say."""

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from server.net.acceptor import BACKLOG
from server.net.files import OTHERS
from server.settings.config import Config
from tests.support.server import ServerProcess

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
CONTAINER = (ROOT / "Containerfile").read_text(encoding="utf-8")
PORTS = re.findall(r"^EXPOSE (.+)$", CONTAINER, re.MULTILINE)[0].split()


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def unit() -> dict[str, list[str]]:
    """Each setting of the service with its values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "fasti.service").read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def mounted(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(source, target) of the mounts of one service."""
    for mount in service.get("volumes", []):
        source, target, *_ = mount.split(":")
        yield source, target


def test_what_compose_mounts_is_there() -> None:
    compose = read("compose.yaml")
    for service in compose["services"].values():
        for source, _ in mounted(service):
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), source
            else:
                assert source in compose["volumes"]
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        assert set(service.get("depends_on", [])) <= set(compose["services"])
    build = compose["services"]["fasti"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_the_server_listens_where_others_ask() -> None:
    compose = read("compose.yaml")["services"]
    assert [port.rpartition(":")[2] for port in compose["fasti"]["ports"]] == PORTS
    for service in compose.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "nothing of it has TLS"
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"fasti:{PORTS[0]}"]}]
    (source,) = read("grafana/datasource.yml")["datasources"]
    assert source["url"] == f"http://prometheus:{compose['prometheus']['ports'][0].rpartition(':')[2]}"


def test_prometheus_has_its_key_and_its_rules() -> None:
    compose = read("compose.yaml")
    prometheus = read("prometheus.yml")
    (secret,) = compose["services"]["prometheus"]["secrets"]
    (scrape,) = prometheus["scrape_configs"]
    assert scrape["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    targets = dict(mounted(compose["services"]["prometheus"]))
    (rules,) = prometheus["rule_files"]
    assert targets[f"../{rules}"] == f"/etc/prometheus/{rules}"


def test_the_key_that_is_made_there_goes_nowhere() -> None:
    """Neither into the repository, nor into the sources that are packed, the image or the site."""
    assert (DEPLOY / read("compose.yaml")["secrets"]["prometheus_key"]["file"]).suffix == ".key"
    for name in (".gitignore", "MANIFEST.in", ".dockerignore", "mkdocs.yml"):
        assert "*.key" in (ROOT / name).read_text(encoding="utf-8"), name


def test_grafana_finds_the_dashboard() -> None:
    targets = dict(mounted(read("compose.yaml")["services"]["grafana"]))
    (provider,) = read("grafana/dashboards.yml")["providers"]
    assert targets["../grafana.json"].startswith(provider["options"]["path"] + "/")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_it(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "alerts.yml", tmp_path)
    (tmp_path / "prometheus.key").touch()
    text = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/prometheus_key", "prometheus.key"))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 rule files found" in done.stdout


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_compose_takes_it() -> None:
    command = ["docker-compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_service(tmp_path: Path) -> None:
    """Of a program that is there."""
    text = (DEPLOY / "fasti.service").read_text(encoding="utf-8")
    service = tmp_path / "fasti.service"
    service.write_text(text.replace("/opt/fasti/bin/fasti-server", "/bin/true").replace("User=fasti\n", ""))
    command = ["systemd-analyze", "verify", str(service)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "fasti.service" not in done.stderr, done.stderr


def test_the_service_may_open_as_many_files_as_the_server_wants() -> None:
    wanted = Config().connections + OTHERS
    assert f"{wanted:,}" in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert int(unit()["LimitNOFILE"][0]) >= wanted
    assert read("compose.yaml")["services"]["fasti"]["ulimits"]["nofile"] >= wanted
    sysctl = configparser.ConfigParser()
    sysctl.read_string("[sysctl]\n" + (DEPLOY / "90-fasti.conf").read_text(encoding="utf-8"))
    assert int(sysctl["sysctl"]["net.core.somaxconn"]) >= BACKLOG
    assert read("compose.yaml")["services"]["fasti"]["sysctls"]["net.core.somaxconn"] >= BACKLOG


def test_the_service_may_do_little() -> None:
    found = unit()
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "MemoryDenyWriteExecute"):
        assert found[name] == ["yes"], name
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    (start,) = found["ExecStart"]
    assert "--data /var/lib/fasti/" in start, "in the one directory that it may write to"
    assert "ProcSubset" not in found, "the metrics of the process need /proc/stat"
    refused = [
        call for line in found["SystemCallFilter"] if line.startswith("~") for call in line[1:].split()
    ]
    assert "@resources" not in refused, "the server sets its limit of files, and the priority of jobs"


def test_a_start_that_cannot_help_is_not_tried_again() -> None:
    """Exit code 2 (docs/deploy.md); and a reload is the signal that reads keys again."""
    found = unit()
    assert found["RestartPreventExitStatus"] == ["2"]
    assert "-HUP" in found["ExecReload"][0]


def test_the_key_of_prometheus_opens_the_metrics_and_no_message(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"fasti (keys add prometheus .+) > prometheus\.key", page)
    file = str(tmp_path / "keys.toml")

    def added(arguments: str) -> dict[str, str]:
        made = [sys.executable, "-m", "server", *arguments.split(), "--file", file]
        done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        return {"Authorization": f"Bearer {done.stdout.strip()}"}

    admin, prometheus = added("keys add ops --scope admin"), added(command)
    server = ServerProcess(tmp_path / "data", settings={"auth.keys_file": file})
    try:
        server.wait_ready()
        body = json.dumps({"topic": "orders/1", "payload": "secret", "deliver_in": "1h"}).encode()
        schedule = {**admin, "Content-Type": "application/json"}
        with urlopen(Request(f"{server.url}/v1/messages", body, schedule), timeout=10) as answer:
            assert answer.status == 201
        with urlopen(Request(f"{server.url}/metrics", headers=prometheus), timeout=10) as answer:
            assert b"fasti_messages_pending 1.0" in answer.read()
        with urlopen(Request(f"{server.url}/v1/messages", headers=prometheus), timeout=10) as answer:
            assert json.load(answer)["messages"] == []
        assert server.stop() == 0
    finally:
        server.kill()
