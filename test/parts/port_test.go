package parts

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAPortHasOneOwnerUntilItsProcessEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "12345")
	if err := reserve(path); err != nil {
		t.Fatal(err)
	}
	if reserve(path) == nil {
		t.Error("two owners of one port")
	}
	if err := reserve(filepath.Join(path, "below a file")); err == nil {
		t.Error("reserved a path below a file")
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
