package app

import (
	"errors"
	"fmt"
	"testing"
)

func TestAMistakeGetsTheNameOfItsSetting(t *testing.T) {
	names := map[Part]string{PartGRPC: "grpc-address", PartState: "state-dir"}
	taken, other := errors.New("taken"), fmt.Errorf("%w; %w", errors.New("a"), errors.New("b"))
	for _, test := range []struct {
		err  error
		want string
	}{
		{&PartError{PartState, taken}, "state-dir: taken"},
		{errors.Join(&PartError{PartGRPC, taken}, &PartError{PartState, taken}), "grpc-address: taken\nstate-dir: taken"},
		{other, "a; b"},
	} {
		if got := Named(test.err, names); got.Error() != test.want || errors.Is(test.err, taken) != errors.Is(got, taken) {
			t.Errorf("%v: got %v, want %s", test.err, got, test.want)
		}
	}
	if Named(nil, names) != nil {
		t.Error("nil is a mistake")
	}
}
