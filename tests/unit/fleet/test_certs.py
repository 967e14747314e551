"""`ingero certs`: certificates that nodes and clients of one authority believe, and nobody else's."""

from __future__ import annotations

import importlib.util
import stat
from datetime import datetime, timedelta, timezone
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from ingero.cli.main import cli
from ingero.errors import IngeroError
from ingero.fleet.authority import AuthorityError, make_authority, make_certificate
from tests.unit.fleet_nodes import NOW, make_certificates


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["certs", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "certs"
    assert run("init", "--dir", str(place)).exit_code == 0
    return place


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_keys_are_their_owners_alone(folder: Path) -> None:
    run("node", "--dir", str(folder), "gpu-01")
    run("client", "--dir", str(folder), "alice")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")} == {
        "ca.key": 0o600, "gpu-01.key": 0o600, "alice.key": 0o600,
    }  # fmt: skip


def test_a_node_gets_its_names_and_is_told_what_to_copy_where(folder: Path) -> None:
    done = run("node", "--dir", str(folder), "gpu-01", "10.0.0.1", "fe80::1", "gpu-01.cluster")
    made = certificate(folder / "gpu-01.pem")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gpu-01", "gpu-01.cluster"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fe80::1"]
    assert f"scp -p {folder}/ca.pem {folder}/gpu-01.pem {folder}/gpu-01.key gpu-01:/etc/ingero/" in done.stdout
    assert "ca.key" not in done.stdout
    assert "--client-ca /etc/ingero/ca.pem" in done.stdout


def test_a_certificate_is_for_one_purpose_and_signs_nothing(folder: Path) -> None:
    run("node", "--dir", str(folder), "gpu-01")
    run("client", "--dir", str(folder), "alice")
    for name, purpose in (
        ("gpu-01", ExtendedKeyUsageOID.SERVER_AUTH),
        ("alice", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        found = certificate(folder / f"{name}.pem").extensions
        assert list(found.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert found.get_extension_for_class(x509.BasicConstraints).value.ca is False
        assert found.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False


def test_a_list_of_nodes_gets_a_certificate_each(folder: Path) -> None:
    done = run("node", "--dir", str(folder), "gpu[08-10]")
    assert sorted(path.name for path in folder.glob("gpu*.pem")) == ["gpu08.pem", "gpu09.pem", "gpu10.pem"]
    assert "and so on, each its own; 3 in all" in done.stdout


def test_a_certificate_is_replaced_only_when_that_is_said(folder: Path) -> None:
    run("node", "--dir", str(folder), "gpu-01")
    first = certificate(folder / "gpu-01.pem").serial_number
    refused = run("node", "--dir", str(folder), "gpu-01")
    assert isinstance(refused.exception, AuthorityError)
    assert "--force" in refused.exception.hint
    assert certificate(folder / "gpu-01.pem").serial_number == first
    assert run("node", "--dir", str(folder), "gpu-01", "--force").exit_code == 0
    assert certificate(folder / "gpu-01.pem").serial_number != first


def test_an_authority_is_never_replaced(folder: Path) -> None:
    before = (folder / "ca.key").read_bytes()
    assert isinstance(run("init", "--dir", str(folder)).exception, AuthorityError)
    assert (folder / "ca.key").read_bytes() == before


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a b", "-x", "ca", "x\n"])
def test_a_name_that_is_none_makes_no_file(folder: Path, name: str) -> None:
    before = sorted(folder.iterdir())
    done = run("client", "--dir", str(folder), "--", name)
    assert isinstance(done.exception, IngeroError)
    assert sorted(folder.iterdir()) == before


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    with pytest.raises(AuthorityError, match="outlive"):
        certificates.make("node", days=3650)


def test_without_an_authority_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError) as raised:
        make_certificate(
            tmp_path, "x", names=("x",), is_server=True, days=1, replaces=False, now=datetime.now(timezone.utc)
        )
    assert raised.value.hint == f"ingero certs init --dir {tmp_path}"


def test_the_key_of_another_authority_is_noticed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_authority(tmp_path / name, name=name, now=NOW - timedelta(days=1))
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    done = run("node", "--dir", str(tmp_path / "a"), "x")
    assert isinstance(done.exception, AuthorityError)
    assert "is not the key of" in str(done.exception)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec

    def hide(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "cryptography" else find(name, package)

    monkeypatch.setattr("ingero.cli.certs.find_spec", hide)
    done = run("init", "--dir", str(tmp_path / "certs"))
    assert isinstance(done.exception, IngeroError)
    assert done.exception.hint == "pip install 'ingero[fleet]'"
    assert not (tmp_path / "certs").exists()
