package deploy

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// composeFile is the part of a Compose file that compose.yaml uses. Any other key is a mistake.
type composeFile struct {
	Name     string
	Services map[string]composeService
}

type composeService struct {
	Image string
	Build struct {
		Context    string
		Dockerfile string
	}
	Command         []string
	Volumes         []string
	Ports           []string
	NetworkMode     string   `yaml:"network_mode"`
	DependsOn       []string `yaml:"depends_on"`
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	MemLimit        string   `yaml:"mem_limit"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	Restart         string
}

// readCompose reads the Compose file, strictly.
func readCompose(t *testing.T) map[string]composeService {
	t.Helper()
	content := parts.Read(t, "compose/compose.yaml")
	decoder := yaml.NewDecoder(strings.NewReader(content))
	decoder.KnownFields(true)
	var file composeFile
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	return file.Services
}

// mounted returns the path on this machine of a file in a container.
func (s composeService) mounted(t *testing.T, path string) string {
	t.Helper()
	for _, volume := range s.Volumes {
		parts := strings.Split(volume, ":")
		if len(parts) != 3 || parts[2] != "ro" {
			t.Fatalf("volume %q: want SOURCE:TARGET:ro", volume)
		}
		if parts[1] == path {
			return filepath.Join("compose", parts[0])
		}
	}
	t.Fatalf("no volume is mounted at %s", path)
	return ""
}

// flagOf returns the value of a flag of the command, as --name=value.
func flagOf(t *testing.T, command []string, name string) string {
	t.Helper()
	for _, arg := range command {
		if value, found := strings.CutPrefix(arg, name+"="); found {
			return value
		}
	}
	t.Fatalf("%v has no %s", command, name)
	return ""
}

func TestComposeSharesOneNetworkAndLocksWeirDown(t *testing.T) {
	t.Parallel()
	services := readCompose(t)
	for _, name := range []string{"envoy", "backend"} {
		if got := services[name].NetworkMode; got != "service:weir" {
			t.Errorf("network of %s: got %q, want that of weir", name, got)
		}
	}
	weir := services["weir"]
	if !weir.ReadOnly || !slices.Equal(weir.CapDrop, []string{"ALL"}) || !slices.Contains(weir.SecurityOpt, "no-new-privileges:true") || weir.MemLimit == "" {
		t.Errorf("weir: got %+v, want a read-only root, no capability, no new privileges and a memory limit", weir)
	}
	if grace, err := time.ParseDuration(weir.StopGracePeriod); err != nil || grace <= 10*time.Second {
		t.Errorf("grace period: got %q, want more than the drain's 10s", weir.StopGracePeriod)
	}
	if dockerfile := filepath.Join("compose", weir.Build.Context, weir.Build.Dockerfile); !exists(dockerfile) {
		t.Errorf("there is no %s", dockerfile)
	}
	// The shared ports equal the ports of envoy.yaml.
	bootstrap := parts.Read(t, services["envoy"].mounted(t, "/etc/envoy/envoy.yaml"))
	_, grpc, _ := net.SplitHostPort(flagOf(t, weir.Command, "--grpc-address"))
	_, backend, _ := net.SplitHostPort(flagOf(t, services["backend"].Command, "-listen"))
	ingress, _, _ := strings.Cut(weir.Ports[0], ":")
	for _, port := range []string{grpc, backend, ingress} {
		if !strings.Contains(bootstrap, "port_value: "+port+" ") {
			t.Errorf("envoy.yaml has no port %q", port)
		}
	}
	if got := flagOf(t, weir.Command, "--http-json"); got != "off" {
		t.Errorf("--http-json: got %q, want off: other containers reach the port", got)
	}
	_, http, _ := net.SplitHostPort(flagOf(t, weir.Command, "--http-address"))
	if want := "127.0.0.1:" + http + ":" + http; !slices.Contains(weir.Ports, want) {
		t.Errorf("ports: got %v, want %s", weir.Ports, want)
	}
}

// TestComposeLimitsThroughEnvoy starts the processes of the Compose file, on free ports.
func TestComposeLimitsThroughEnvoy(t *testing.T) {
	t.Parallel()
	services := readCompose(t)
	weir := services["weir"]
	if weir.Command[0] != "serve" {
		t.Fatalf("command of weir: got %v, want serve", weir.Command)
	}
	args := slices.Clone(weir.Command[1:])
	ports := make(map[string]string) // from the ports of the file to the ports of this test
	for i, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		if name == "--rules" {
			args[i] = name + "=" + weir.mounted(t, value)
		}
		if _, port, err := net.SplitHostPort(value); err == nil {
			ports[name], args[i] = port, name+"=127.0.0.1:0"
		}
	}
	built := program(t, "sidecar") // before the time of soon begins
	sidecar, err := parts.StartSidecar(parts.Soon(t), built, append(args, "--admin-address=")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sidecar.Kill)

	text := parts.Read(t, services["envoy"].mounted(t, "/etc/envoy/envoy.yaml"))
	_, backendPort, _ := net.SplitHostPort(flagOf(t, services["backend"].Command, "-listen"))
	for from, to := range map[string]string{
		"port_value: " + ports["--grpc-address"] + " ": "port_value: " + portText(t, sidecar.GRPC) + " ",
		"port_value: " + backendPort + " ":             "port_value: " + portText(t, startBackend(t)) + " ",
		"address: 0.0.0.0, port_value: 10000":          "address: 127.0.0.1, port_value: 0",
		"address: 127.0.0.1, port_value: 9901":         "address: 127.0.0.1, port_value: 0",
		"timeout: 0.050s":                              "timeout: 10s", // a busy machine is no fault
	} {
		if !strings.Contains(text, from) {
			t.Fatalf("envoy.yaml has no %q", from)
		}
		text = strings.Replace(text, from, to, 1)
	}
	e := startEnvoyOn(t, text)
	e.passes(t, 3, call{path: "/hello"}) // as the head of compose.yaml says
}

// portText returns the port of an address.
func portText(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
