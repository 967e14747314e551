#!/usr/bin/env bash
# The files of the image: Debian's Python without a package manager, and a wheel of ingero with its extras.
# Usage: deploy/docker/make_root.sh WHEEL ROOT     WHEEL: of `make wheels`, which names the architecture, with that of
#                                                  ingero-gpusim beside it; ROOT: a new folder
# Needs root, mmdebstrap, and pip. MIRROR names a mirror of Debian other than the usual one.
set -euo pipefail
wheel=$(readlink -f "$1") root=$2
suite=trixie python=3.13

case $wheel in
*_x86_64.whl) machine=x86_64 debian=amd64 ;;
*_aarch64.whl) machine=aarch64 debian=arm64 ;;
*) echo "make_root: $1 is no wheel of x86_64 or aarch64 (make wheels)" >&2 && exit 2 ;;
esac
version=${wheel##*/ingero-} version=${version%%-*}
gpusim=$(find "$(dirname "$wheel")" -maxdepth 1 -name "ingero_gpusim-$version-*_$machine.whl")
[ -e "$gpusim" ] || { echo "make_root: no wheel of ingero-gpusim $version for $machine beside $1 (make wheels)" >&2 && exit 2; }
[ -n "$root" ] && [ ! -e "$root" ] || { echo "make_root: $root is there already" >&2 && exit 2; }

mmdebstrap --quiet --mode=root --variant=extract --architectures=$debian \
	--include=python3-minimal,python$python,libstdc++6,ca-certificates,dash,coreutils \
	$suite "$root" ${MIRROR:+"$MIRROR"}
for name in bin sbin lib lib64; do # of the merged /usr, which nothing makes where packages are only extracted
	[ -e "$root/$name" ] || [ ! -e "$root/usr/$name" ] || ln -sfn "usr/$name" "$root/$name"
done
(cd "$root/usr/lib/python$python" && rm -rf ensurepip idlelib lib2to3 pydoc_data test tkinter turtledemo _pyrepl)
(cd "$root/usr/share" && rm -rf bash-completion doc info lintian locale man)
(cd "$root/var" && rm -rf cache lib/apt lib/dpkg)
mkdir -p "$root"/{etc/ssl/certs,proc,root,run,sys,tmp,var/lib/ingero,home/ingero}
chmod 1777 "$root/tmp"
cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
{
	echo root:x:0:0:root:/root:/bin/sh
	echo ingero:x:65532:65532:reads recordings:/home/ingero:/bin/sh
	echo nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
} >"$root/etc/passwd"
printf 'root:x:0:\ningero:x:65532:\nnogroup:x:65534:\n' >"$root/etc/group"
chown 65532:65532 "$root/home/ingero"

python3 -m pip install --quiet --disable-pip-version-check --no-compile --target "$root/opt/ingero" --only-binary=:all: \
	--implementation cp --python-version $python \
	--platform manylinux_2_28_$machine --platform manylinux_2_17_$machine --platform manylinux2014_$machine \
	"${wheel}[dashboard,demo,fleet,mcp,metrics]" "$gpusim"
(cd "$root/opt/ingero" && rm -rf bin numpy/f2py numpy/include && find numpy -type d -name tests -prune -exec rm -rf {} +)
{
	echo "#!/usr/bin/python$python -I"
	echo 'import sys'
	echo 'sys.path.insert(0, "/opt/ingero")'
	echo 'from ingero.cli.main import main'
	echo 'main()'
} >"$root/usr/bin/ingero"
chmod 755 "$root/usr/bin/ingero"
# A root that is read-only would compile at each start, in each process of the sandbox anew. Bytecode is the same on every
# architecture; a Python of this version makes it: the root's own, or for another architecture's root one beside it.
own=$root
if [ "$machine" != "$(uname -m)" ]; then
	own=$(mktemp -d)
	scratch=$own
	trap 'rm -rf "$scratch"' EXIT
	mmdebstrap --quiet --mode=root --variant=extract --include=python$python $suite "$own/root" ${MIRROR:+"$MIRROR"}
	own=$own/root
fi
loader=$(find "$own"/usr/lib "$own"/usr/lib64 -name 'ld-linux-*.so.*' -print -quit 2>/dev/null)
env -i PYTHONHOME="$own/usr" "$loader" --library-path "$own/usr/lib/$(uname -m)-linux-gnu" "$own/usr/bin/python$python" \
	-m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / "$root/opt/ingero" "$root/usr/lib/python$python" >/dev/null ||
	true # packages bring sources of other Pythons as data
[ -n "$(find "$root/opt/ingero/ingero" -name '*.pyc' -print -quit)" ] || { echo "make_root: nothing was compiled" >&2 && exit 1; }
