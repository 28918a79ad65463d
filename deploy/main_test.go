package deploy

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// programs builds each program of the tests at most once.
var programs = map[string]func() (string, error){
	"sidecar":   sync.OnceValues(func() (string, error) { return build("cmd/sidecar") }),
	"ratelimit": sync.OnceValues(func() (string, error) { return build("cmd/ratelimit") }),
	"crds":      sync.OnceValues(func() (string, error) { return build("deploy/crds") }),
}

// build builds the program in a folder of the repository, static as it is in the image.
func build(folder string) (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	return parts.Program(context.Background(), root, folder, false)
}

// program returns the path of a built program.
func program(t *testing.T, name string) string {
	t.Helper()
	binary, err := programs[name]()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// exists reports whether there is a file.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
