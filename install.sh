#!/bin/sh
# Installs a release of ingero: a folder with everything in it, its own Python too, and a link in PREFIX/bin.
#
#   sh install.sh [--version V] [--prefix DIR] [--systemd] [--from URL] [--key FILE | --sha256 HEX]
#   sh install.sh --uninstall [--prefix DIR]
#
#   --version V     which release; otherwise that of this script
#   --prefix DIR    otherwise /usr/local for root, ~/.local for others
#   --systemd       also run it as a service (needs root)
#   --from URL      folder of the release: https://..., file:///..., or a path
#   --key FILE      public key (of ssh-keygen) that the release must be signed with, instead of the one in this script
#   --sha256 HEX    of the archive, learned from somebody you trust; then no signature is asked for
#   --uninstall     remove it; recordings stay
#
# It reads its arguments and nothing else: no variables, no standard input, no configuration. Nothing of a download is
# run before its checksum, and the signature of the checksum, have been found right. It can be run again.
set -eu
umask 022
unset CDPATH ENV TAR_OPTIONS

VERSION=0.1.0
KEY='' # `make release` puts the public key of the release here
RELEASES=https://github.com/ingero-io/ingero/releases/download
SIGNER=releases@ingero

say() { printf 'install: %s\n' "$*"; }
fail() {
	printf 'install: %s\n' "$1" >&2
	[ $# -lt 2 ] || printf '  hint: %s\n' "$2" >&2
	exit 2
}
has() { command -v "$1" >/dev/null 2>&1; }

prefix='' from='' key='' sha256='' systemd='' uninstall=''
while [ $# -gt 0 ]; do
	case $1 in
	--systemd) systemd=1 ;;
	--uninstall) uninstall=1 ;;
	--version | --prefix | --from | --key | --sha256)
		[ $# -gt 1 ] || fail "$1 needs a value"
		case $1 in
		--version) VERSION=$2 ;;
		--prefix) prefix=$2 ;;
		--from) from=$2 ;;
		--key) key=$2 ;;
		--sha256) sha256=$2 ;;
		esac
		shift
		;;
	-h | --help)
		sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0"
		exit 0
		;;
	*) fail "there is no option $1" "sh install.sh --help" ;;
	esac
	shift
done

case $VERSION in '' | *[!0-9A-Za-z.+-]* | .* | -*) fail "$VERSION is no version" "--version 0.1.0" ;; esac
case $sha256 in *[!0-9a-f]*) fail "--sha256 is 64 digits of 0-9 and a-f" ;; esac
[ -z "$sha256" ] || [ ${#sha256} = 64 ] || fail "--sha256 is 64 digits of 0-9 and a-f"
me=$(id -u)
if [ -z "$prefix" ]; then
	prefix=/usr/local
	if [ "$me" != 0 ]; then
		home=$(getent passwd "$me" | cut -d: -f6)
		[ -n "$home" ] || fail "user $me has no home folder" "--prefix DIR"
		prefix=$home/.local
	fi
fi
case $prefix in /*) ;; *) prefix=$(pwd)/$prefix ;; esac
prefix=${prefix%/}
trees=$prefix/lib/ingero-releases
link=$prefix/bin/ingero

is_ours() { [ -L "$link" ] && [ "$(readlink "$link")" = ../lib/ingero-releases/current/bin/ingero ]; }
needs_root_for_service() {
	say "the service is root's to $1. As root: $link service $1"
}

if [ -n "$uninstall" ]; then
	if is_ours && [ -e "/etc/systemd/system/ingero.service" ] && [ "$(readlink -f "$link")" = "$(readlink -f "$trees/current/bin/ingero")" ]; then
		if [ "$me" = 0 ]; then "$link" service uninstall; else needs_root_for_service uninstall; fi
	fi
	if is_ours; then rm -f "$link"; fi
	rm -rf "$trees"
	say "removed from $prefix; recordings stay in ~/.ingero and /var/lib/ingero"
	exit 0
fi

[ -L "$link" ] || [ ! -e "$link" ] || fail "$link is there, and not of this installer" "remove it, or name another --prefix"
[ ! -L "$link" ] || is_ours || fail "$link leads to $(readlink "$link"), not to a release" "remove it, or name another --prefix"
case $(uname -s) in Linux) ;; *) fail "ingero runs on Linux only" ;; esac
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) fail "there is no release for $(uname -m)" "build it: git clone, make install" ;;
esac
for tool in tar gzip sha256sum readlink; do
	has "$tool" || fail "$tool is not installed"
done

name=ingero_${VERSION}_linux_$machine
from=${from:-$RELEASES/v$VERSION}
mkdir -p "$trees" "$prefix/bin" 2>/dev/null || fail "$prefix cannot be written" "run it as root, or --prefix DIR"
work=$(mktemp -d "$trees/.new.XXXXXXXX") || fail "$trees cannot be written" "run it as root, or --prefix DIR"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

fetch() {
	case $from in
	https://*)
		if has curl; then
			curl --disable --proto '=https' --proto-redir '=https' --tlsv1.2 -fsSL -o "$work/$1" "$from/$1" </dev/null
		elif has wget; then
			wget --no-config --https-only -q -O "$work/$1" "$from/$1" </dev/null
		else
			fail "neither curl nor wget is installed" "fetch $from/$1 and the files beside it yourself, then --from DIR"
		fi
		;;
	file://*) cp -- "${from#file://}/$1" "$work/$1" ;;
	*://*) fail "$from: only https:// and file:// are trusted to bring a release" ;;
	*) cp -- "$from/$1" "$work/$1" ;;
	esac || fail "$1 could not be had from $from"
}

if [ -z "$sha256" ]; then
	if [ -n "$key" ]; then
		[ -r "$key" ] || fail "$key cannot be read"
		KEY=$(head -n 1 -- "$key")
	fi
	[ -n "$KEY" ] || fail "this script knows no key to check the release with" "--key FILE, or --sha256 HEX of $name.tar.gz"
	has ssh-keygen || fail "ssh-keygen, which checks the signature, is not installed" "install openssh-client, or --sha256 HEX"
	fetch SHA256SUMS
	fetch SHA256SUMS.sig
	printf '%s namespaces="file" %s\n' "$SIGNER" "$KEY" >"$work/signers"
	ssh-keygen -Y verify -f "$work/signers" -I "$SIGNER" -n file -s "$work/SHA256SUMS.sig" <"$work/SHA256SUMS" >/dev/null 2>&1 ||
		fail "the signature of $from/SHA256SUMS is not right: nothing was installed"
	sha256=$(awk -v name="$name.tar.gz" '$2 == name || $2 == "*" name { print $1 }' "$work/SHA256SUMS")
	[ ${#sha256} = 64 ] || fail "SHA256SUMS does not name $name.tar.gz once: nothing was installed"
fi

tree=$trees/$VERSION
if [ -f "$tree/.sha256" ] && [ "$(cat "$tree/.sha256")" = "$sha256" ]; then
	say "$VERSION is there already"
else
	fetch "$name.tar.gz"
	printf '%s  %s\n' "$sha256" "$work/$name.tar.gz" | sha256sum -c - >/dev/null 2>&1 ||
		fail "the checksum of $name.tar.gz is not right: nothing was installed"
	tar -tzf "$work/$name.tar.gz" >"$work/names" || fail "$name.tar.gz cannot be unpacked"
	if grep -qvE "^$(printf %s "$name" | sed 's/[.+]/\\&/g')(/|\$)" "$work/names" || grep -qE '(^|/)\.\.(/|$)' "$work/names"; then
		fail "$name.tar.gz has files outside of its folder: nothing was installed"
	fi
	tar -xzf "$work/$name.tar.gz" -C "$work" --no-same-owner --no-same-permissions || fail "$name.tar.gz cannot be unpacked"
	said=$("$work/$name/bin/ingero" version </dev/null) || fail "the release does not run on this host"
	case $said in "ingero $VERSION "*) ;; *) fail "the release says that it is $said" ;; esac
	printf '%s\n' "$sha256" >"$work/$name/.sha256"
	rm -rf "$tree"
	mv "$work/$name" "$tree"
	say "$said"
fi

before=$(readlink "$trees/current" 2>/dev/null || true)
ln -s "$VERSION" "$work/current" && mv -Tf "$work/current" "$trees/current"
ln -s ../lib/ingero-releases/current/bin/ingero "$work/link" && mv -Tf "$work/link" "$link"
for old in "$trees"/*; do # the one before stays: it may be running
	case ${old##*/} in "$VERSION" | "$before" | current) ;; *) rm -rf "$old" ;; esac
done
say "installed: $link"
case :$PATH: in *:"$prefix/bin":*) ;; *) say "  $prefix/bin is not on your PATH" ;; esac

if [ -n "$systemd" ]; then
	if [ "$me" = 0 ]; then "$link" service install </dev/null; else needs_root_for_service install; fi
elif [ "$me" != 0 ]; then
	say "tracing needs root or capabilities: sudo $link check; reading recordings does not"
else
	say "next: ingero check"
fi
