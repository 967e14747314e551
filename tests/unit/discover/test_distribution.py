"""What people are told to install is what their distribution has."""

from __future__ import annotations

import pytest

from ingero.discover.distribution import Distribution, read_distribution, this_distribution

DEBIAN_12 = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n'
DEBIAN_11 = 'PRETTY_NAME="Debian GNU/Linux 11 (bullseye)"\nVERSION_ID="11"\nID=debian\n'
TESTING = 'PRETTY_NAME="Debian GNU/Linux forky/sid"\nID=debian\n'
JAMMY = 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n'
NOBLE = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n'
MINT = 'PRETTY_NAME="Linux Mint 21.3"\nVERSION_ID="21.3"\nID=linuxmint\nID_LIKE="ubuntu debian"\n'
ROCKY = 'PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\nVERSION_ID="9.4"\nID="rocky"\nID_LIKE="rhel centos fedora"\n'
FEDORA = 'PRETTY_NAME="Fedora Linux 41"\nVERSION_ID=41\nID=fedora\n'
LEAP = 'PRETTY_NAME="openSUSE Leap 15.6"\nVERSION_ID="15.6"\nID="opensuse-leap"\nID_LIKE="suse opensuse"\n'
ARCH = 'PRETTY_NAME="Arch Linux"\nID=arch\nBUILD_ID=rolling\n'
OTHER = 'PRETTY_NAME="Some Linux"\nID=some\n'


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (DEBIAN_12, "sudo apt-get install libbpf1"),
        (TESTING, "sudo apt-get install libbpf1"),
        (NOBLE, "sudo apt-get install libbpf1"),
        (FEDORA, "sudo dnf install libbpf"),
    ],
)
def test_a_package_that_is_there_is_named(text: str, fix: str) -> None:
    assert read_distribution(text).libbpf_fix == fix


@pytest.mark.parametrize(
    ("text", "name"), [(JAMMY, "Ubuntu 22.04.5 LTS"), (DEBIAN_11, "Debian GNU/Linux 11 (bullseye)")]
)
def test_a_distribution_that_has_none_is_said_and_no_package_named(text: str, name: str) -> None:
    fix = read_distribution(text).libbpf_fix
    assert fix.startswith(f"{name} has no libbpf 1.0: ")
    assert "apt" not in fix
    assert "INGERO_LIBBPF" in fix


@pytest.mark.parametrize(("text", "tool"), [(MINT, "apt-get"), (ROCKY, "dnf"), (LEAP, "zypper"), (ARCH, "pacman")])
def test_of_others_the_package_comes_with_what_it_must_be(text: str, tool: str) -> None:
    fix = read_distribution(text).libbpf_fix
    assert fix.startswith(f"sudo {tool} ")
    assert "1.0 or newer" in fix


@pytest.mark.parametrize("text", [OTHER, "", "ID\n=\nID='open\nVERSION_ID=x", "\x00\xff" * 100])
def test_of_an_unknown_one_no_tool_is_named(text: str) -> None:
    found = read_distribution(text)
    for fix in (found.libbpf_fix, found.kernel_fix, found.driver_fix(550)):
        assert not any(tool in fix for tool in ("apt", "dnf", "zypper", "pacman"))


@pytest.mark.parametrize(
    ("text", "package"),
    [(DEBIAN_12, "linux-image-$(dpkg --print-architecture)"), (MINT, "linux-image-generic"),
     (ROCKY, "dnf upgrade kernel"), (LEAP, "kernel-default"), (ARCH, "pacman -Syu linux")],
)  # fmt: skip
def test_the_kernels_package_is_the_distributions(text: str, package: str) -> None:
    assert package in read_distribution(text).kernel_fix


def test_the_drivers_package_is_named_where_its_number_is_in_its_name() -> None:
    assert "nvidia-driver-550" in read_distribution(NOBLE).driver_fix(550)
    assert "nvidia-driver-" not in read_distribution(DEBIAN_12).driver_fix(550)


def test_this_machine_has_one() -> None:
    assert this_distribution() == this_distribution() != Distribution(id="nobody has this")
