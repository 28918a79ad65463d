package deploy

import (
	"archive/tar"
	"crypto/tls"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/weirproxy/weir/deploy/image"
	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// stages returns the images of the Dockerfile by the name of their target.
func stages(t *testing.T) map[string]image.Stage {
	t.Helper()
	all, err := image.Stages(parts.Read(t, "Dockerfile"), map[string]string{"VERSION": "1.2.3", "REVISION": "abc"})
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]image.Stage)
	for _, s := range all {
		named[s.Name] = s
	}
	return named
}

func TestDockerfileMakesAStaticBinaryForNobody(t *testing.T) {
	t.Parallel()
	// Without these no certificate would be trusted that is not of an authority in a file of ours.
	authorities := image.Copy{From: "/etc/ssl/certs/ca-certificates.crt", To: "/etc/ssl/certs/ca-certificates.crt"}
	sidecar, ratelimit := image.Copy{From: "/out/sidecar", To: "/bin/sidecar"}, image.Copy{From: "/out/ratelimit", To: "/bin/ratelimit"}
	// Platforms start /bin/ratelimit by name, whichever of the two images with both it is.
	both := []image.Copy{authorities, sidecar, ratelimit}
	for target, want := range map[string]image.Stage{
		"":          {Entrypoint: []string{"/bin/sidecar"}, Copies: both},
		"ratelimit": {Entrypoint: []string{"/bin/ratelimit"}, Copies: both},
		"sidecar":   {Entrypoint: []string{"/bin/sidecar"}, Copies: both[:2]},
	} {
		got := stages(t)[target]
		// Arguments of an entry point would come before the arguments of a manifest.
		if !slices.Equal(got.Entrypoint, want.Entrypoint) || !slices.Equal(got.Copies, want.Copies) || got.User != "65532:65532" {
			t.Errorf("target %q: got %+v, want the files %v, the entry point %v and nobody", target, got, want.Copies, want.Entrypoint)
		}
		if got.Labels["org.opencontainers.image.version"] != "1.2.3" || got.Labels["org.opencontainers.image.revision"] != "abc" {
			t.Errorf("target %q: got the labels %v, want the version and the revision", target, got.Labels)
		}
	}
	content := parts.Read(t, "Dockerfile")
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "version.linked=$VERSION", "version.revision=$REVISION", "./cmd/sidecar", "./cmd/ratelimit"} {
		if !strings.Contains(content, want) {
			t.Errorf("the build lacks %q", want)
		}
	}
}

// unpack builds the image of a target, and writes its file system below root.
func unpack(t *testing.T, target, root string, files map[string]string) {
	t.Helper()
	built, err := stages(t)[target].Build(v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}, files, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	content := mutate.Extract(built)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path, mode := filepath.Join(root, filepath.Clean("/"+header.Name)), header.FileInfo().Mode().Perm()
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, mode); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, mode); err != nil {
			t.Fatal(err)
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

// Each image starts its entry point as its user, where the root is the file system of the image.
func TestEachImageStartsItsEntryPoint(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may make the file system of an image the whole one")
	}
	certificates := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(certificates, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for target, stage := range stages(t) {
		if len(stage.Entrypoint) == 0 {
			continue
		}
		t.Run("target "+target, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Chmod(root, 0o755); err != nil {
				t.Fatal(err)
			}
			unpack(t, target, root, map[string]string{
				"/out/sidecar": program(t, "sidecar"), "/out/ratelimit": program(t, "ratelimit"), "/etc/ssl/certs/ca-certificates.crt": certificates,
			})
			var user, group uint32
			if _, err := fmt.Sscanf(stage.User, "%d:%d", &user, &group); err != nil || user == 0 {
				t.Fatalf("user %q: must be numbers, and not root", stage.User)
			}
			run := exec.CommandContext(parts.Soon(t), stage.Entrypoint[0], append(stage.Entrypoint[1:], "version")...)
			run.Dir, run.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: group}}
			out, err := run.CombinedOutput()
			if errors.Is(err, fs.ErrPermission) {
				t.Skip(err) // root, but not of everything
			}
			if err != nil || !strings.HasPrefix(string(out), "weir ") {
				t.Errorf("got %q, %v", out, err)
			}
		})
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
	authority := certtest.New(t, "some public authority")
	certificates := certtest.Write(t, filepath.Join(t.TempDir(), "ca.crt"), authority.PEM)
	unpack(t, "", root, map[string]string{
		"/out/sidecar": program(t, "sidecar"), "/out/ratelimit": program(t, "ratelimit"), "/etc/ssl/certs/ca-certificates.crt": certificates,
	})
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
