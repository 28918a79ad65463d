package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
	"github.com/weirproxy/weir/test/promise"
)

// A few seconds on a machine that may be busy: the limit holds, and most of it is used.
func TestEightEnvoysKeepALimit(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const root = "../.."
	o := options{lasts: 12 * time.Second, warm: 2 * time.Second, envoy: parts.NeedEnvoy(t, root)}
	var err error
	if o.sidecar, err = program.Sidecar(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	r := row{loads: []load{{"100/s on each", "acme", bucket(500, 100, time.Second), each(100)}, {"2/s on each", "few", bucket(3, 3, time.Second), each(2)}}}
	all, err := measure(t.Context(), root, &r, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", all)
	if few := all[1]; few.over > 0 || few.failed > 0 || few.admitted == 0 || few.admitted > 40 {
		t.Errorf("of 3 per second: got %+v", few)
	}
	if v := all[0]; v.over > 0 || v.failed > 0 || v.admitted < v.expected/2 {
		t.Errorf("got %+v", v)
	}
}

func TestAVerdictComesFromRequestsAndAnswers(t *testing.T) {
	c := &client{waits: []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}, failures: 4}
	for i := range 5 { // all at once
		c.all = append(c.all, promise.Request{Sent: int64(time.Second), Received: int64(time.Second) + int64(i), Keys: []int{0}, Admitted: true})
	}
	var v verdict
	l := &load{limit: bucket(1, 2, time.Second)}
	v.judge(l, []*client{c}, nil)
	var none verdict
	none.judge(l, []*client{c}, []period{{time.Unix(1, 0), time.Unix(2, 0)}})
	if none.admitted != 0 || none.expected != 0 || none.over != 3 {
		t.Errorf("in a time that does not count: got %+v", none)
	}
	if v.admitted != 5 || v.expected != 2 || v.over != 3 || v.failed != 4 || v.median != 2*time.Millisecond || v.longest != 3*time.Millisecond {
		t.Errorf("got %+v", v)
	}
}

func TestArgumentsAreBounded(t *testing.T) {
	for _, args := range [][]string{{"-lasts=0s"}, {"-warm=-1s"}, {"-lasts=1s", "-warm=1s"}, {"-row=("}, {"-row=magic"}, {"more"}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q): got no error", args)
		}
	}
	if o, err := parse([]string{"-row=few|small", "--", "--log-level=debug"}, io.Discard); err != nil || len(o.more) != 1 || !o.row.MatchString("small") || o.row.MatchString("smaller") {
		t.Errorf("parse: got %+v, %v", o, err)
	}
}

func TestABootstrapHasItsAddresses(t *testing.T) {
	text := parts.Read(t, "../../test/e2e/testdata/rlqs.yaml.tmpl")
	got, err := configure(text, "127.0.0.1:1234", "127.0.0.1:5678", "/clusters.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"port_value: 1234", "port_value: 5678", "/clusters.json", "x-block"} {
		if strings.Count(got, part) != 1 {
			t.Errorf("%q is not there once", part)
		}
	}
}
