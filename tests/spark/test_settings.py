"""What Spark is told, for each kind of master."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
from engram.errors import Misuse
from engram.spark.settings import SparkSettings
from engram.spark.spark import not_of_py4j
from py4j.java_gateway import GatewayClient, GatewayParameters

SCRATCH = Path("scratch")
ELSEWHERE = {"spark.driver.host": "10.0.0.1"}


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,2,1024]", "spark://127.0.0.1:7077"])
def test_without_an_address_everything_is_on_loopback(master: str):
    """Driver and executors; nobody has to say anything about a secret."""
    settings = SparkSettings(master, {})
    settings.check()
    conf = settings.conf(SCRATCH)

    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.executorEnv.SPARK_LOCAL_IP"] == settings.environment(SCRATCH)["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_port_that_others_reach_needs_a_word_about_the_secret():
    """Refused, with what to write; true and false are both a word, and what is chosen is what Spark gets."""
    with pytest.raises(Misuse, match=r"Spark's own ports on 10\.0\.0\.1 would be open to everybody"):
        SparkSettings("spark://10.0.0.1:7077", ELSEWHERE).check()
    for word in ("true", "false"):
        settings = SparkSettings("spark://10.0.0.1:7077", {**ELSEWHERE, "spark.authenticate": word})
        settings.check()
        conf = settings.conf(SCRATCH)
        assert conf["spark.authenticate"] == word
        assert ("spark.network.crypto.enabled" in conf) == (word == "true")
        assert conf["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://kubernetes.default.svc"])
def test_where_spark_brings_the_secret_it_is_used(master: str):
    """Authenticated and encrypted without a word; and executors are not told to stay on loopback."""
    settings = SparkSettings(master, ELSEWHERE)
    settings.check()
    conf = settings.conf(SCRATCH)

    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert "spark.executorEnv.SPARK_LOCAL_IP" not in conf


def test_an_interpreter_of_their_own_gets_nothing_of_the_drivers_path():
    """By default executors start this Python and look where it looks."""
    own = SparkSettings("yarn", {**ELSEWHERE, "spark.pyspark.python": "./environment/bin/python"})
    same = SparkSettings("yarn", ELSEWHERE)

    assert own.environment(SCRATCH)["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert own.path == ()
    assert "spark.executorEnv.PYTHONPATH" not in own.conf(SCRATCH)
    assert same.environment(SCRATCH)["PYSPARK_PYTHON"] == sys.executable
    assert same.conf(SCRATCH)["spark.executorEnv.PYTHONPATH"] == os.pathsep.join(same.path)


def test_lost_executors_are_given_up_soon_only_where_there_are_any():
    """In one process with the driver an executor is never lost, and a suspended machine must not end it."""
    timeout = "spark.storage.blockManagerHeartbeatTimeoutMs"

    assert timeout not in SparkSettings("local[2]", {}).conf(SCRATCH)
    assert SparkSettings("spark://127.0.0.1:7077", {}).conf(SCRATCH)[timeout] == "30000"
    assert SparkSettings("yarn", {timeout: "90000"}).conf(SCRATCH)[timeout] == "90000"


def test_a_lost_jvm_is_told_in_our_words_only(
    taken_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """What py4j prints of it on the root logger is left out, and what anybody else says there is not."""
    monkeypatch.setattr(logging.getLogger(), "filters", [not_of_py4j])
    client = GatewayClient(gateway_parameters=GatewayParameters(port=taken_port, read_timeout=0.1))

    answer = client.send_command("x\n", retry=False)
    logging.getLogger().error("ours")

    assert answer == "x"  # py4j's word for an error
    assert caplog.messages == ["ours"]
