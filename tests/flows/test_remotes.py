"""Remotes of DVC: what is public and released in one, what is private in another or nowhere, and a clone of both."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tasks.pipeline.graph import HEAD, MAIN
from tasks.runtime.stage_graph import VAULT
from tests.conftest import REPOSITORY
from tests.flows.conftest import command, dvc

KEY = "terrine-vault"
IN_GIT = ("metrics.json", "plots")


@pytest.fixture(scope="module")
def s3():
    """An S3 store on this machine, with two buckets; a client of it."""
    pytest.importorskip("dvc_s3", reason="dvc-s3 is not installed: pip install 'terrine[s3]'")
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
    import botocore.session
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "of no account")
        server.start()
        url = "http://{}:{}".format(*server.get_host_and_port())
        client = botocore.session.get_session().create_client("s3", endpoint_url=url, region_name="us-east-1")
        for bucket in ("public", "vault"):
            client.create_bucket(Bucket=bucket)
        yield client, url
        server.stop()


def in_git(project: Path, url: str, *, vault: bool) -> None:
    """Name remotes for a project's artefacts, and commit what git does not ignore."""
    text = (REPOSITORY / ".dvc" / "config").read_text().replace("[core]", "[core]\n    remote = public")
    for name, bucket in (("public", "public"), (VAULT, "vault"))[: 1 + vault]:
        text += f"['remote \"{name}\"']\n    url = s3://{bucket}/terrine\n    endpointurl = {url}\n"
    if vault:
        text += f"    sse = aws:kms\n    sse_kms_key_id = {KEY}\n"
    (project / ".dvc" / "config").write_text(text)
    (project / "dvc.yaml").write_text(MAIN.dvc_yaml(HEAD, vault=vault))
    shutil.copy(REPOSITORY / ".gitignore", project)
    for words in (["config", "user.name", "Ada"], ["config", "user.email", "ada@example.org"], ["add", "--all"]):
        command(project, "git", *words)
    command(project, "git", "commit", "--quiet", "--message", "a finished run")


def objects_of(project: Path, zone: str) -> set[str]:
    """Return what DVC calls the files of a zone: MD5 digests, of folders those of their files too."""
    found = set()
    for stage in yaml.safe_load((project / "dvc.lock").read_text())["stages"].values():
        for out in stage["outs"]:
            if out["path"].startswith(f"data/{zone}/") and not out["path"].endswith(IN_GIT):
                found.add(out["md5"])
                kept = project / ".dvc" / "cache" / "files" / "md5" / out["md5"][:2] / out["md5"][2:]
                if kept.suffix == ".dir":
                    found |= {each["md5"] for each in json.loads(kept.read_text())}
    return found


def stored(client, bucket: str) -> set[str]:
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", [])]
    assert all(key.startswith("terrine/files/md5/") for key in keys), "settings of runs lie beside the files"
    return {"".join(key.split("/")[-2:]) for key in keys}


@pytest.mark.slow
def test_private_artefacts_are_in_their_own_remote_alone_and_a_clone_has_nothing_to_make(s3, finished, tmp_path):
    client, url = s3
    in_git(finished, url, vault=False)
    dvc(finished, "push", "--run-cache")
    private = objects_of(finished, "private") - objects_of(finished, "public") - objects_of(finished, "release")
    public = objects_of(finished, "public") | objects_of(finished, "release")
    assert len(private) > 10
    assert stored(client, "public") == public
    assert not private & public

    in_git(finished, url, vault=True)
    assert json.loads(dvc(finished, "status", "--json")) == {}
    dvc(finished, "push", "--run-cache")
    assert stored(client, "public") == public
    assert stored(client, "vault") == objects_of(finished, "private")
    for entry in client.list_objects_v2(Bucket="vault")["Contents"]:
        about = client.head_object(Bucket="vault", Key=entry["Key"])
        assert (about["ServerSideEncryption"], about["SSEKMSKeyId"]) == ("aws:kms", KEY)

    clone = tmp_path / "clone"
    command(finished, "git", "clone", "--quiet", str(finished), str(clone))
    dvc(clone, "pull")
    assert "Data and pipelines are up to date" in dvc(clone, "repro")
    assert not (clone / "data" / "private" / "ledger").exists()
