package deploy

import (
	"crypto/tls"
	"debug/elf"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

func TestDockerfileMakesAStaticBinaryForNobody(t *testing.T) {
	t.Parallel()
	content := parts.Read(t, "Dockerfile")
	// The last FROM starts the image.
	_, image, found := strings.Cut(content, "\nFROM scratch\n")
	if !found {
		t.Fatal("want an image FROM scratch: nothing but the binary")
	}
	_, drop, _ := strings.Cut(content, "\nFROM scratch AS ratelimit\n")
	drop, alone, found := strings.Cut(strings.TrimSuffix(drop, "\nFROM scratch\n"+image), "\nFROM scratch AS sidecar\n")
	if !found || strings.Contains(alone, "ratelimit") || !strings.HasSuffix(alone, "ENTRYPOINT [\"/bin/sidecar\"]\n") {
		t.Errorf("the target sidecar: got %q, want sidecar alone", alone)
	}
	for entry, image := range map[string]string{"sidecar": image, "ratelimit": drop} {
		for _, want := range []string{
			"USER 65532:65532\n", "ENTRYPOINT [\"/bin/" + entry + "\"]\n",
			// Platforms start /bin/ratelimit by name, whichever of the two it is.
			"COPY --from=build /out/sidecar /bin/sidecar\n", "COPY --from=build /out/ratelimit /bin/ratelimit\n",
			// Without these no certificate would be trusted that is not of an authority in a file of ours.
			"COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt\n",
		} {
			if !strings.Contains(image, want) {
				t.Errorf("the image of %s lacks %q", entry, want)
			}
		}
		// Arguments of an entry point would come before the arguments of a manifest.
		if strings.Contains(image, "\nCMD ") {
			t.Errorf("the image of %s has arguments of its own", entry)
		}
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "version.linked=$VERSION", "version.revision=$REVISION", "./cmd/sidecar", "./cmd/ratelimit"} {
		if !strings.Contains(content, want) {
			t.Errorf("the build lacks %q", want)
		}
	}
}

func TestProgramsOfTheImageNeedNoLibrary(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sidecar", "ratelimit"} {
		file, err := elf.Open(program(t, name))
		if err != nil {
			t.Skip(err) // another system, where other formats are in use
		}
		defer file.Close()
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s wants a linker at run time", name)
			}
		}
	}
}

// TestRatelimitRunsAsNobodyInAFileSystemThatIsEmptyAndReadOnly starts the program with the files of
// the image and of a pod's mounts. The program may write nowhere.
func TestRatelimitRunsAsNobodyInAFileSystemThatIsEmptyAndReadOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may make an empty file system the whole one")
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, program(t, "ratelimit"), filepath.Join(root, "bin", "ratelimit"))
	authority := certtest.New(t, "some public authority")
	writeBelow(t, root, "etc/ssl/certs/ca-certificates.crt", authority.PEM)
	redis, trusted := startTLS(t, authority)
	rules := parts.Read(t, "contour/rules/ratelimit-config.yaml")
	writeBelow(t, root, "data/ratelimit/config/ratelimit-config.yaml", []byte(rules))
	before := namesBelow(t, root)

	env := variables(t, buildManifests(t, "contour").ratelimit(t), nil)
	env["HOST"], env["GRPC_HOST"], env["DEBUG_HOST"] = "127.0.0.1", "127.0.0.1", "127.0.0.1"
	env["PORT"], env["GRPC_PORT"], env["DEBUG_PORT"] = "0", "0", "0"
	env["BACKEND_TYPE"], env["REDIS_SOCKET_TYPE"], env["REDIS_URL"], env["REDIS_TLS"] = "redis", "tcp", redis, "true"
	run := exec.CommandContext(parts.Soon(t), "/bin/ratelimit")
	run.Dir = "/"
	for name, value := range env {
		run.Env = append(run.Env, name+"="+value)
	}
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGKILL) }
	log, err := run.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); errors.Is(err, fs.ErrPermission) {
		t.Skip(err) // root, but not of everything
	} else if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	buffer := make([]byte, 4<<10)
	for !strings.Contains(said.String(), "ready") {
		n, err := log.Read(buffer)
		said.Write(buffer[:n])
		if err != nil {
			t.Fatalf("it does not get ready: %v\n%s", err, &said)
		}
	}
	select {
	case <-trusted:
	case <-parts.Soon(t).Done():
		t.Error("it does not trust whom the authorities of the image vouch for")
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(); err != nil {
		t.Errorf("at its end: %v\n%s%s", err, &said, rest)
	}
	if strings.Contains(said.String()+string(rest), "level=error") {
		t.Errorf("it is not content:\n%s%s", &said, rest)
	}
	if after := namesBelow(t, root); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("files: got %v, want %v", after, before)
	}
}

// startTLS listens where a Redis could, with a certificate of that authority, and returns where.
// The channel is closed when a client has trusted it.
func startTLS(t *testing.T, authority *certtest.Authority) (address string, trusted <-chan struct{}) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, "127.0.0.1").TLS(t)}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if secure, ok := conn.(*tls.Conn); ok && secure.HandshakeContext(t.Context()) == nil {
				select {
				case <-done:
				default:
					close(done)
				}
			}
			conn.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
	})
	return l.Addr().String(), done
}

// writeBelow writes a file that anybody may read and nobody else write.
func writeBelow(t *testing.T, root, name string, content []byte) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// copyFile copies a program.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content := parts.Read(t, from)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// namesBelow returns all that is in a folder.
func namesBelow(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
