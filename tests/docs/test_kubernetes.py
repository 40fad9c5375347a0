"""The manifests of docs/deploy/kubernetes fit each other, the container, the server, and Kubernetes too."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.support.server import ServerProcess

from .programs import ROOT, key_of

MANIFESTS = sorted((ROOT / "docs" / "deploy" / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: strict, so that a word that it does not know is refused."""


def read() -> dict[str, Any]:
    """By kind."""
    found = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return {one["kind"]: one for one in found}


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """(pod, container) of the StatefulSet."""
    pod = read()["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_them(version: str) -> None:
    from kubernetes_validate import ValidationError, validate

    for one in read().values():
        validate(one, version, strict=True)
    wrong = read()["StatefulSet"]
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(ValidationError):
        validate(wrong, version, strict=True)


def test_each_finds_the_other() -> None:
    manifests = read()
    assert set(manifests) == {"ConfigMap", "Service", "StatefulSet"}
    spec = manifests["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    assert spec["serviceName"] == manifests["Service"]["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"] == labels
    pod, container = parts()
    volumes = {one["name"]: one for one in [*pod["volumes"], *(_named(spec["volumeClaimTemplates"]))]}
    assert {one["name"] for one in container["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert f"create secret generic {volumes['keys']['secret']['secretName']} --from-file=keys.toml" in page
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {one["targetPort"]: one["port"] for one in manifests["Service"]["spec"]["ports"]} == ports


def _named(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["metadata"] for one in claims]


def test_they_fit_the_container() -> None:
    pod, container = parts()
    said = (ROOT / "Containerfile").read_text(encoding="utf-8")
    assert f"--uid {pod['securityContext']['runAsUser']} " in said
    assert f"EXPOSE {' '.join(str(one['containerPort']) for one in container['ports'])}\n" in said
    assert "VOLUME /data\n" in said
    assert "FASTI__STORE__DIR=/data/" in said
    (data,) = (one["mountPath"] for one in container["volumeMounts"] if one["name"] == "data")
    assert data == "/data"


def test_a_server_that_is_started_as_they_say_is_live_and_wants_a_key(tmp_path: Path) -> None:
    """A secret is a link to a file that its group may read; what is written goes to the volume alone."""
    pod, container = parts()
    keys = tmp_path / "secret" / "..data" / "keys.toml"
    keys.parent.mkdir(parents=True)
    shown = key_of("keys add ops --scope admin", keys)
    (keys_volume,) = (one for one in pod["volumes"] if one["name"] == "keys")
    keys.chmod(keys_volume["secret"]["defaultMode"])
    (tmp_path / "secret" / "keys.toml").symlink_to(keys)
    (tmp_path / "config.toml").write_text(read()["ConfigMap"]["data"]["config.toml"])
    (keys_file,) = (one["value"] for one in container["env"] if one["name"] == "FASTI__AUTH__KEYS_FILE")
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert os.path.dirname(keys_file) in mounts
    arguments = [one.replace("/etc/fasti/", f"{tmp_path}/") for one in container["args"]]
    assert str(tmp_path / "config.toml") in arguments
    settings = {"auth.keys_file": str(tmp_path / "secret" / "keys.toml")}
    server = ServerProcess(tmp_path / "data", *arguments, settings=settings)
    try:
        server.wait_ready()
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            with urlopen(server.url + container[name]["httpGet"]["path"], timeout=10) as answer:
                assert answer.status == 200
        with pytest.raises(HTTPError, match="401"):
            urlopen(server.url + "/v1/messages", timeout=10)
        key = {"Authorization": f"Bearer {shown}"}
        with urlopen(Request(server.url + "/v1/messages", headers=key), timeout=10) as answer:
            assert answer.status == 200
        assert server.stop() == 0
    finally:
        server.kill()
