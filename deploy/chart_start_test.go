package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// adminToken is the token of the page in tests.
const adminToken = "0123456789abcdef"

// startContainer runs a container of `sidecar` as a process: with its arguments, and its files
// where they can be here. Addresses, the places of files, and Redis differ.
func startContainer(t *testing.T, m manifests, c corev1.Container) *parts.Sidecar {
	t.Helper()
	if len(c.Args) == 0 || c.Args[0] != "serve" {
		t.Fatalf("got arguments %q, want serve first", c.Args)
	}
	root := t.TempDir()
	mounts := make(map[string]bool) // of files
	for _, mount := range c.VolumeMounts {
		mounts[mount.MountPath] = true
		switch volume := m.volume(t, mount.Name); {
		case volume.ConfigMap != nil:
			layVolume(t, filepath.Join(root, mount.MountPath), m.configMap(t, volume.ConfigMap.Name).Data)
		case volume.Secret != nil:
			files := make(map[string]string)
			pair := certtest.New(t, "authority").Issue(t, "weir")
			for _, item := range volume.Secret.Items {
				switch item.Path {
				case "token":
					files[item.Path] = adminToken + "\n" // as of a file that an editor wrote
				case "tls.crt":
					files[item.Path] = string(pair.Certificate)
				case "tls.key":
					files[item.Path] = string(pair.Key)
				default:
					files[item.Path] = adminToken
				}
			}
			layVolume(t, filepath.Join(root, mount.MountPath), files)
		}
	}
	var args []string
	for _, arg := range c.Args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case strings.HasPrefix(value, "/"):
			if dir := filepath.Dir(value); !mounts[dir] && !mounts[value] {
				t.Errorf("%s: no volume is mounted there", arg)
			}
			if name == "--redis-tls-ca" { // the test's Redis has no TLS
				continue
			}
			value = root + value
			if err := os.MkdirAll(filepath.Dir(value), 0o755); err != nil {
				t.Fatal(err)
			}
		case strings.HasSuffix(name, "-address") && value != "":
			host, _, _ := strings.Cut(value, ":")
			if value = host + ":0"; host == "" && name != "--admin-address" {
				value = "127.0.0.1:0"
			}
		case name == "--redis-url":
			value = "redis://" + startRedis(t, c.Args).Address()
		}
		args = append(args, name+"="+value)
	}
	s, err := parts.StartSidecar(parts.Soon(t), program(t, "sidecar"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("last lines of sidecar:\n%s", s.Tail(30))
		}
	})
	return s
}

// startRedis starts a Redis with the login of the arguments.
func startRedis(t *testing.T, args []string) *parts.Redis {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	var o parts.RedisOptions
	for _, arg := range args {
		if strings.HasPrefix(arg, "--redis-password-file=") {
			o.Password = adminToken
		}
	}
	r, err := parts.StartRedis(parts.Soon(t), parts.NeedRedis(t, root), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// checkProbePort holds that a probe goes to the port of --http-address.
func checkProbePort(t *testing.T, c corev1.Container, probe *corev1.Probe) {
	t.Helper()
	for _, port := range c.Ports {
		if port.Name == probe.HTTPGet.Port.StrVal && slices.Contains(c.Args, fmt.Sprintf("--http-address=:%d", port.ContainerPort)) {
			return
		}
	}
	t.Errorf("%s: the probe's port %v is not the one of --http-address", probe.HTTPGet.Path, probe.HTTPGet.Port)
}

// volume returns a volume of the pod.
func (m manifests) volume(t *testing.T, name string) corev1.Volume {
	t.Helper()
	for _, v := range m.deployment.Spec.Template.Spec.Volumes {
		if v.Name == name {
			return v
		}
	}
	t.Fatalf("the pod has no volume %q", name)
	return corev1.Volume{}
}
