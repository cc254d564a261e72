"""Snapshots by URL: object stores and other file systems behave as local files do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fsspec
import pytest
from engram.cli.main import app as cli
from engram.errors import Misuse, Unavailable
from engram.snapshots.base import SnapshotStore
from engram.snapshots.open import absolute_store, open_store
from engram.snapshots.parted import PartedSnapshots
from engram.snapshots.remote import RemoteStorage
from engram.testing import SnapshotConformance
from typer.testing import CliRunner

from tests.snapshots.contents import social_contents
from tests.snapshots.s3 import S3Server

CREATED = 1_700_000_000_000


class TestMemory(SnapshotConformance):
    """`memory://`: objects that are there whole once they are put."""

    def make(self, tmp_path: Path, app: str) -> SnapshotStore:
        return open_store(f"memory://{tmp_path}", app)

    def reopen(self, store: SnapshotStore, tmp_path: Path, app: str) -> SnapshotStore:
        return open_store(f"memory://{tmp_path}", app)


class TestFileSystem(SnapshotConformance):
    """A file system that shows files while they are written, as HDFS does: they get their names afterwards."""

    def make(self, tmp_path: Path, app: str) -> SnapshotStore:
        return PartedSnapshots(RemoteStorage(f"file://{tmp_path}", app), app)

    def reopen(self, store: SnapshotStore, tmp_path: Path, app: str) -> SnapshotStore:
        return self.make(tmp_path, app)


class TestS3(SnapshotConformance):
    """`s3://`, on a real S3 server."""

    increments = 6  # each takes some dozens of requests; the base is small enough to be written anew in between

    @pytest.fixture(autouse=True)
    def server(self, s3: S3Server) -> None:
        """There is one."""

    def make(self, tmp_path: Path, app: str) -> SnapshotStore:
        self._storage = RemoteStorage(f"s3://snapshots{tmp_path}", app)
        return PartedSnapshots(self._storage, app)

    def reopen(self, store: SnapshotStore, tmp_path: Path, app: str) -> SnapshotStore:
        return PartedSnapshots(self._storage, app)


@pytest.mark.parametrize("url", ["memory://{}", "s3://snapshots{}"])
def test_the_layout_is_that_of_local_files(s3: S3Server, tmp_path: Path, url: str):
    """Manifest and parts, under the app and the partition; damage is set aside under the same names too."""
    store = open_store(url.format(tmp_path), "social")
    older, newer = (store.publish(7, social_contents(offset), created=CREATED) for offset in (2, 5))
    files, root = fsspec.url_to_fs(url.format(tmp_path), use_listings_cache=False)
    folder = f"{root}/social/partition-0007"
    written = {path.removeprefix(f"{folder}/") for path in files.find(folder)}
    files.pipe_file(f"{folder}/{newer.name}/memory.json", b"?")
    loaded = store.newest(7)

    names = (older.name, newer.name)
    assert written == {f"{n}{end}" for n in names for end in (".json", "/entities.parquet", "/memory.json")}
    assert loaded is not None
    assert loaded.manifest == older
    assert files.exists(f"{folder}/{newer.name}.damaged")


@pytest.mark.parametrize("url", ["memory://{}", "s3://snapshots{}"])
def test_the_last_three_and_savepoints_are_kept(s3: S3Server, tmp_path: Path, url: str):
    """And of all others nothing is left."""
    store = open_store(url.format(tmp_path), "social")
    store.publish(0, social_contents(1)._replace(savepoint="first"), created=CREATED)
    for offset in range(2, 7):
        store.publish(0, social_contents(offset), created=CREATED)
    files, root = fsspec.url_to_fs(url.format(tmp_path), use_listings_cache=False)

    assert [manifest.offset for manifest in store.manifests(0)] == [6, 5, 4, 1]
    assert len(files.find(root)) == 4 * 3


def test_a_store_that_hangs_is_unavailable(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After the driver's deadlines, which are options of fsspec, or ours; nothing is taken for damaged, and all is
    there again when the store is."""
    url = f"s3://snapshots{tmp_path}"
    patient = open_store(url, "social")
    published = patient.publish(0, social_contents(2), created=CREATED)
    quickly = {"connect_timeout": 0.2, "read_timeout": 0.2, "retries": {"total_max_attempts": 1}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": quickly})
    monkeypatch.setattr("engram.snapshots.remote._WRITE_S", 1.0)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    store = open_store(url, "social")
    s3.pause()
    try:
        with pytest.raises(Unavailable):
            store.newest(0)
        with pytest.raises(Unavailable, match="A snapshot of partition 0 could not be written to s3://snapshots"):
            store.publish(0, social_contents(5), created=CREATED)
    finally:
        s3.go_on()

    loaded = patient.newest(0)
    assert loaded is not None
    assert loaded.manifest == published


def test_a_bucket_that_is_not_there_is_told(s3: S3Server):
    """Not taken for an empty one when something is to be written."""
    store = open_store("s3://no-such-bucket/here", "social")
    with pytest.raises(Unavailable, match="could not be written to s3://no-such-bucket/here/social"):
        store.publish(0, social_contents(2), created=CREATED)


def test_the_command_line_takes_urls(s3: S3Server, tmp_path: Path):
    """`snapshot list` and `verify`, and `schema check`, look at a bucket as they do at a folder."""
    url = f"s3://snapshots{tmp_path}"
    published = open_store(url, "social").publish(3, social_contents(2), created=CREATED)
    app = "sample_apps.social:app"
    listed = CliRunner().invoke(cli, ["snapshot", "list", app, "--snapshots", url, "--json"])
    verified = CliRunner().invoke(cli, ["snapshot", "verify", app, "--snapshots", url, "--json"])
    checked = CliRunner().invoke(cli, ["schema", "check", app, "--snapshots", url])
    nothing = CliRunner().invoke(cli, ["schema", "check", app, "--snapshots", f"{url}/nowhere"])

    # Shards of other tests in this process may still have something to say.
    rows, found = (json.loads(said.stdout.splitlines()[-1]) for said in (listed, verified))
    assert [(row["partition"], row["offset"]) for row in rows] == [(3, 2)]
    assert [(row["digest"], row["problem"]) for row in found] == [(published.digest, "")]
    assert checked.exit_code == 0
    assert "There are no snapshots of social in s3://" in nothing.stderr


def test_a_missing_driver_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """The sentence has Engram's extra where there is one."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(Misuse, match=r"without its driver: install engram\[s3\]"):
        open_store("s3://bucket/here", "social")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(Misuse, match=r"without its driver: .*gcsfs"):
        open_store("gs://bucket/here", "social")


@pytest.mark.parametrize("url", ["nosuch://bucket/here", "s3:bucket"])
def test_what_is_no_place_is_refused(url: str):
    """A protocol that nobody knows, and a URL that would become an odd folder."""
    with pytest.raises(Misuse):
        open_store(url, "social")


def test_paths_and_file_urls_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Made, synced and renamed as ever; a relative one means the same wherever the shards are started."""
    monkeypatch.chdir(tmp_path)
    for url in ("here", "file:here", f"file://{tmp_path}/here"):
        assert absolute_store(url) == str(tmp_path / "here")
        assert open_store(url, "social").place == str(tmp_path / "here" / "social")
    assert absolute_store("s3://bucket/here") == "s3://bucket/here"


def test_a_password_in_a_url_is_not_shown():
    """Messages and logs have the place, not who may write there."""
    assert RemoteStorage("memory://ada:secret@host/here", "social").place == "memory://host/here/social"
