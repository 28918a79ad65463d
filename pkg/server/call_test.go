package server

import (
	"bytes"
	"testing"
)

func TestOnlyModestCallsAreKept(t *testing.T) {
	for name, row := range map[string]struct {
		message []byte
		want    bool
	}{
		"usual":                  {benchMessage(), true},
		"long_value":             {bytesField(1, make([]byte, 100_000)), false},
		"many_empty_descriptors": {bytes.Repeat(bytesField(2), 2000), false},
		"many_empty_entries":     {bytesField(2, bytes.Repeat(bytesField(1), 32_000)), false},
	} {
		var c call
		c.decode(row.message)
		if got := c.modest(); got != row.want {
			t.Errorf("%s: a call of %d bytes is kept: got %v; want %v", name, c.size, got, row.want)
		}
	}
}
