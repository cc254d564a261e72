"""The Kubernetes manifest of the docs: valid for Kubernetes, and a command line that `engram run` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from engram.cli.batch import spark_settings
from engram.cli.main import app
from engram.spark.settings import SparkSettings

MANIFEST = Path(__file__).parents[1] / "docs" / "reference" / "kubernetes.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text()))


def driver() -> dict[str, Any]:
    deployment = next(each for each in DOCUMENTS if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each["kind"])
def test_each_part_is_valid_by_kubernetes_own_schema(document: dict[str, Any]):
    """Strictly: also no field that Kubernetes does not know. A wrong one is found."""
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(document, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**document, "metadata": {"name": 5}}, version, strict=True)


def test_the_driver_is_a_command_line_that_engram_takes():
    """Options that are not there any more would show only when somebody deploys it."""
    container = driver()
    program, command, *reference = container["command"]
    arguments = [
        argument.replace("$(POD_IP)", "10.1.2.3").replace("$(POD_NAME)", "p") for argument in container["args"]
    ]
    context = typer.main.get_command(app).commands[command].make_context(command, [*reference, *arguments])
    asked = context.params
    settings = SparkSettings(asked["master"], {"spark.driver.host": asked["registry_host"]})
    slots = spark_settings(asked["spark_conf"])

    assert program == "engram"
    settings.check()  # Kubernetes brings the secret
    conf = settings.conf(Path("scratch"))
    assert (conf["spark.authenticate"], conf["spark.driver.bindAddress"]) == ("true", "10.1.2.3")
    assert "spark.executorEnv.SPARK_LOCAL_IP" not in conf
    assert int(slots["spark.executor.instances"]) * int(slots["spark.executor.cores"]) > asked["shards"]


def test_the_service_finds_the_driver():
    """Its selector is the pods' label, and its port one of the container's."""
    deployment, service = (next(each for each in DOCUMENTS if each["kind"] == k) for k in ("Deployment", "Service"))

    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] in [port["name"] for port in driver()["ports"]]
