"""The version that trained a model is read from git's files."""

import subprocess

import pytest

import luna_fairseq
from luna_fairseq import provenance
from luna_fairseq.provenance import commit


def git(folder, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    run = subprocess.run(["git", *identity, *words], cwd=str(folder), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    try:
        git(tmp_path, "init", "one")
    except OSError:
        pytest.skip("no git")
    folder = tmp_path / "one"
    git(folder, "commit", "--allow-empty", "-m", "first")
    return folder


def test_the_commit_of_a_branch_packed_or_not_of_a_worktree_and_of_none(checkout):
    expected = git(checkout, "rev-parse", "HEAD")
    assert commit(checkout / ".git") == expected
    git(checkout, "worktree", "add", "../two", "-b", "other/branch")
    assert commit(checkout.parent / "two" / ".git") == expected
    git(checkout, "pack-refs", "--all")
    assert commit(checkout / ".git") == expected == commit(checkout.parent / "two" / ".git")
    git(checkout, "checkout", "--detach")
    assert commit(checkout / ".git") == expected


def test_a_folder_without_checkout_has_no_commit(tmp_path):
    assert commit(tmp_path / ".git") is None
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert commit(tmp_path / ".git") is None
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "HEAD").write_text("<script>\n")
    assert commit(tmp_path / "folder") is None


def test_an_installed_package_tells_its_version_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(luna_fairseq, "__file__", str(tmp_path / "luna_fairseq" / "__init__.py"))
    assert provenance.provenance.__wrapped__() == f"luna_fairseq {luna_fairseq.__version__}"
