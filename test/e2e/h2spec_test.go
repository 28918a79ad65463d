package e2e

import (
	"encoding/xml"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// h2specFailures returns the cases of h2spec that fail, by name, with the reason why each one may.
// The requests of h2spec are GETs, so grpc-go answers them behind the lane.
func h2specFailures() map[string]string {
	const (
		trailersOnly = "grpc-go answers a GET with one HEADERS frame, and ends the stream: h2spec waits for DATA"
		early        = "grpc-go has answered the GET already: it ignores what follows on the stream"
	)
	return map[string]string{
		"Sends a WINDOW_UPDATE frame on half-closed (remote) stream":                                                                             trailersOnly,
		"Sends a PRIORITY frame on half-closed (remote) stream":                                                                                  trailersOnly,
		"half closed (remote): Sends a DATA frame":                                                                                               early,
		"closed: Sends a DATA frame after sending RST_STREAM frame":                                                                              early,
		"closed: Sends a DATA frame":                                                                                                             early,
		"Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded":                                               "grpc-go answers each GET before the next one comes",
		"Sends HEADERS frame that depend on itself":                                                                                              "grpc-go ignores priorities",
		"Sends a DATA frame on the stream that is not in \"open\" or \"half-closed (local)\" state":                                              early,
		"Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream":                                     early,
		"Sends a HEADERS frame with the \"content-length\" header field which does not equal the DATA frame payload length":                      early,
		"Sends a HEADERS frame with the \"content-length\" header field which does not equal the sum of the multiple DATA frames payload length": early,
	}
}

// report is the part of a JUnit report that the test reads.
type report struct {
	Suites []struct {
		Cases []struct {
			Package string    `xml:"package,attr"`
			Name    string    `xml:"classname,attr"`
			Error   *struct{} `xml:"error"`
			Failure *struct{} `xml:"failure"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func TestTheLanePassesTheCasesOfH2spec(t *testing.T) {
	once(t)
	t.Parallel()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "h2spec")
	build := exec.CommandContext(t.Context(), "go", "build", "-modfile=tools/go.mod", "-o", binary, "github.com/summerwind/h2spec/cmd/h2spec")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("h2spec cannot be built: %v\n%s", err, out)
		}
		t.Skipf("h2spec cannot be built: %v", err)
	}
	s := startSidecar(t, "domain: e2e\n", "--grpc-server=lane")
	// h2spec takes a reset connection for an error of its own. So a case that wants the end of a
	// connection fails now and then. A case that fails each time has found a fault.
	failed := h2specRun(t, binary, s.GRPC)
	for again := 0; again < 2 && len(failed) > 0; again++ {
		next := h2specRun(t, binary, s.GRPC)
		maps.DeleteFunc(failed, func(name string, _ bool) bool { return !next[name] })
	}
	for name := range failed {
		t.Errorf("%s: failed", name)
	}
}

// h2specRun returns the cases that fail without a reason.
func h2specRun(t *testing.T, binary, address string) map[string]bool {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.xml")
	out, err := exec.CommandContext(t.Context(), binary, "-h", host, "-p", port, "-j", file, "-o", "3").CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) { // some cases fail
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all report
	if err := xml.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	cases, known, failed := 0, h2specFailures(), map[string]bool{}
	for _, suite := range all.Suites {
		for _, c := range suite.Cases {
			cases++
			if (c.Error != nil || c.Failure != nil) && known[c.Name] == "" {
				failed[c.Package+": "+c.Name] = true
			}
		}
	}
	if cases < 140 {
		t.Errorf("cases: got %d, want at least 140", cases)
	}
	return failed
}
