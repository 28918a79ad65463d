package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"runtime/debug"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// billOf lists the modules of info and the standard library as components of the program. The
// digest is the SHA-256 of the binary. The error names a module whose checksum is not readable.
func billOf(program, version string, info *debug.BuildInfo, digest [sha256.Size]byte) (*cyclonedx.BOM, error) {
	version = cmp.Or(version, info.Main.Version)
	main := component(cyclonedx.ComponentTypeApplication, info.Path, version, info.Main.Path)
	main.Name = program
	if below, ok := strings.CutPrefix(info.Path, info.Main.Path+"/"); ok {
		main.PackageURL += "#" + below
	}
	main.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(digest[:])}}

	// A scanner finds the vulnerabilities of the standard library by the name std.
	components := []cyclonedx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		one, err := dependency(module)
		if err != nil {
			return nil, err
		}
		components = append(components, one)
	}
	refs := make([]string, len(components))
	for i := range components {
		refs[i] = components[i].BOMRef
	}

	bill := cyclonedx.NewBOM()
	bill.SerialNumber = uuid.NewSHA1(uuid.NameSpaceOID, digest[:]).URN()
	bill.Metadata = &cyclonedx.Metadata{Component: &main, Timestamp: setting(info, "vcs.time")}
	bill.Components = &components
	// The binary does not say which module imports which, so that every module counts as one of the
	// program.
	bill.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bill, nil
}

// dependency is a module as the binary has it: in the place of a replaced module, the replacement.
// A replacement that is a directory has no name outside, so that the module keeps its own.
func dependency(module *debug.Module) (cyclonedx.Component, error) {
	linked := module
	var properties *[]cyclonedx.Property
	if by := module.Replace; by != nil && (by.Version == "" || by.Version == "(devel)") {
		properties = &[]cyclonedx.Property{{Name: "weir:replaced-by", Value: by.Path}}
	} else if by != nil {
		linked = by
		properties = &[]cyclonedx.Property{{Name: "weir:replaces", Value: module.Path + "@" + module.Version}}
	}
	one := library(linked.Path, linked.Version)
	one.Properties = properties
	// A directory has no checksum.
	if linked.Sum == "" {
		return one, nil
	}
	encoded, ok := strings.CutPrefix(linked.Sum, "h1:")
	digest, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(digest) != sha256.Size {
		return one, fmt.Errorf("module %s: checksum %q, want h1: and %d bytes in base64", linked.Path, linked.Sum, sha256.Size)
	}
	// The digest of go.sum, as other programs for bills of Go modules write it: of the list of files,
	// not of an archive.
	one.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(digest)}}
	return one, nil
}

func library(path, version string) cyclonedx.Component {
	return component(cyclonedx.ComponentTypeLibrary, path, version, path)
}

// component makes a component with the reference PATH@VERSION and the package URL of the module.
// The specification of package URLs wants lower case for Go, and a plus sign escaped.
func component(kind cyclonedx.ComponentType, path, version, module string) cyclonedx.Component {
	ref, purl := path, "pkg:golang/"+strings.ToLower(module)
	if version != "" {
		ref += "@" + version
		purl += "@" + url.QueryEscape(version)
	}
	return cyclonedx.Component{BOMRef: ref, Type: kind, Name: path, Version: version, PackageURL: purl}
}

// setting is a setting of the build, or "" when the binary does not have it.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
