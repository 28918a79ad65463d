#!/usr/bin/env bash
# Usage: release.sh [--snapshot]
# Writes the files of a release to dist/: an archive for each platform, images, the chart, bills of
# materials and checksums. Without --snapshot the commit must have the tag vVERSION, where VERSION
# is the chart's, and the work tree must be clean. With --snapshot the version is
# VERSION-snapshot.gCOMMIT. Needs only the modules, GNU tar and sha256sum: no network, and no
# container engine.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(awk '$1 == "version:" { print $2 }' deploy/helm/weir/Chart.yaml)
revision=$(git rev-parse HEAD)
seconds=$(git log -1 --format=%ct)
if [ "${1-}" = --snapshot ]; then
	version=$version-snapshot.g$(git rev-parse --short HEAD)
else
	wrong=
	[ -z "$(git status --porcelain)" ] || wrong+="the work tree has changes"$'\n'
	[ -n "$(git tag --points-at HEAD --list "v$version")" ] || wrong+="this commit does not have the tag v$version, the version of deploy/helm/weir/Chart.yaml"$'\n'
	grep -qE "^## ${version//./\\.}( |$)" CHANGELOG.md || wrong+="CHANGELOG.md has no heading ## $version"$'\n'
	if [ -n "$wrong" ]; then
		printf 'no release: %s' "$wrong" >&2
		exit 1
	fi
fi

# pack NAME FILE... writes dist/NAME.tar.gz, with the files in a directory NAME. The same files give
# the same bytes.
pack() {
	tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$seconds" \
		--transform="s,.*/,,;s,^,$1/," "${@:2}" | gzip -9 --no-name >"dist/$1.tar.gz"
}

rm -rf dist
for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do
	at=dist/programs/${platform/\//_}
	name=weir_${version}_${platform/\//_}
	GOOS=${platform%/*} GOARCH=${platform#*/} make --no-print-directory build OUT="$at/" VERSION="v$version" REVISION="$revision"
	scripts/bom.sh "v$version" "$at/sidecar" "$at/ratelimit"
	pack "$name" "$at"/* README.md LICENSE CHANGELOG.md SECURITY.md
	for program in sidecar ratelimit; do
		cp "$at/$program.bom.json" "dist/${name}_$program.bom.json"
	done
done
# As `go install …@v$version` does it, from the files of this tree.
WEIR_INSTALL=1 go -C deploy test -count=1 -run GoInstall ./release
go -C deploy run ./release -version "$version" -revision "$revision" -time "$seconds" -out "$PWD/dist"
WEIR_RELEASE="$PWD/dist" go -C deploy test -count=1 -run StartAsContainers ./release
(cd dist && sha256sum -- *.tar.gz *.tgz *.json >SHA256SUMS)
(cd dist && du -sh --apparent-size -- *.tar.gz *.tgz *.json SHA256SUMS images)
