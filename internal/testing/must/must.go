// Package must ends a test at an error that the test is not about, and compares values.
package must

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Do fails the test now unless err is nil.
func Do(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Get returns a function that returns v, unless err is not nil: then the function fails the test.
// So it takes both results of a call: must.Get(os.ReadFile(path))(t).
func Get[V any](v V, err error) func(testing.TB) V {
	return func(tb testing.TB) V {
		tb.Helper()
		Do(tb, err)
		return v
	}
}

// First is Get for a call with two results and an error. The function returns the first result.
func First[V, W any](v V, _ W, err error) func(testing.TB) V { return Get(v, err) }

// Match reports the difference between two values, as cmp.Diff writes it, and goes on. what names
// them.
func Match(tb testing.TB, what string, want, got any, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
