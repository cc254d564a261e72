"""One question to one broker: who is in the cluster, and who leads what."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

_VERSION = 5


@dataclass(frozen=True, slots=True)
class Led:
    """A partition as a broker knows it; `leader` is None while there is none."""

    leader: int | None
    replicas: frozenset[int]
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class Cluster:
    id: str
    brokers: frozenset[int]
    partitions: dict[tuple[str, int], Led]


def ask_cluster(port: int, seconds: float) -> Cluster:
    """What the broker on this loopback port knows. Raises `OSError` when it does not answer in time.

    Done by hand on a socket: a client would find other brokers to ask, go on trying, and log about it.
    """
    request = MetadataRequest(version=_VERSION, topics=None, allow_auto_topic_creation=False)
    request.with_header(correlation_id=1, client_id="engram-dev")
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        with connection.makefile("rb") as answer:
            size = int.from_bytes(_exactly(answer.read(4), 4))
            response = MetadataResponse.decode(_exactly(answer.read(size), size), version=_VERSION, header=True)
    return Cluster(
        id=response.cluster_id,
        brokers=frozenset(broker.node_id for broker in response.brokers),
        partitions={
            (topic.name, p.partition_index): Led(
                leader=p.leader_id if p.leader_id >= 0 else None,
                replicas=frozenset(p.replica_nodes),
                in_sync=frozenset(p.isr_nodes),
            )
            for topic in response.topics
            for p in topic.partitions
        },
    )


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ConnectionError(f"the broker ended the connection after {len(data)} of {size} bytes")
    return data
