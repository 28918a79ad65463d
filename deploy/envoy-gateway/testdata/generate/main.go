// Command generate writes what Envoy Gateway makes of settings and of a policy. It is built inside
// a copy of Envoy Gateway: generate.sh.
//
//	generate VERSION FOLDER MEMORY-FOLDER TO
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/api/v1alpha1/validation"
	"github.com/envoyproxy/gateway/internal/gatewayapi"
	"github.com/envoyproxy/gateway/internal/gatewayapi/resource"
	"github.com/envoyproxy/gateway/internal/infrastructure/kubernetes/ratelimit"
	"github.com/envoyproxy/gateway/internal/ir"
	"github.com/envoyproxy/gateway/internal/logging"
	"github.com/envoyproxy/gateway/internal/xds/translator"
)

const namespace = "envoy-gateway-system"

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(version, folder, memory, to string) error {
	settings, err := readSettings(filepath.Join(folder, "envoy-gateway.yaml"))
	if err != nil {
		return err
	}
	inMemory, err := readSettings(filepath.Join(memory, "envoy-gateway.yaml"))
	if err != nil {
		return err
	}
	rules, xds, err := translate(settings, filepath.Join(folder, "policy.yaml"))
	if err != nil {
		return err
	}
	files := map[string][]any{"rules.yaml": rules, "xds.yaml": xds}
	if files["deployment.yaml"], err = deploy(settings); err != nil {
		return err
	}
	if files["deployment-memory.yaml"], err = deploy(inMemory); err != nil {
		return err
	}
	for name, documents := range files {
		text := "# Written by generate.sh with Envoy Gateway " + version + ".\n"
		for _, document := range documents {
			part, err := marshal(document)
			if err != nil {
				return err
			}
			text += "---\n" + part
		}
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func marshal(document any) (string, error) {
	if m, ok := document.(proto.Message); ok {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			return "", err
		}
		out, err := yaml.JSONToYAML(text)
		return string(out), err
	}
	out, err := yaml.Marshal(document)
	// What the API server would fill in is not Envoy Gateway's.
	if before, _, found := strings.Cut(string(out), "\nstatus:"); found {
		return before + "\n", err
	}
	return string(out), err
}

// readSettings reads settings as Envoy Gateway does.
func readSettings(path string) (*egv1a1.EnvoyGateway, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	settings := new(egv1a1.EnvoyGateway)
	if err := yaml.UnmarshalStrict(text, settings); err != nil {
		return nil, err
	}
	settings.SetEnvoyGatewayDefaults()
	return settings, validation.ValidateEnvoyGateway(settings)
}

// deploy returns what Envoy Gateway runs as the rate limit service.
func deploy(settings *egv1a1.EnvoyGateway) ([]any, error) {
	render := ratelimit.NewResourceRender(namespace, settings, nil)
	deployment, err := render.Deployment()
	if err != nil {
		return nil, err
	}
	service, err := render.Service()
	if err != nil {
		return nil, err
	}
	all := []any{deployment, service}
	autoscaler, err := render.HorizontalPodAutoscaler()
	if err != nil {
		return nil, err
	}
	if autoscaler != nil {
		all = append(all, autoscaler)
	}
	budget, err := render.PodDisruptionBudget()
	if err != nil {
		return nil, err
	}
	if budget != nil {
		all = append(all, budget)
	}
	return all, nil
}

// translate returns what the rate limit service is told over xDS, and of what Envoy is told the
// listener, the route and the cluster of that service.
func translate(settings *egv1a1.EnvoyGateway, path string) (rules, xds []any, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	resources, err := resource.LoadResourcesFromYAMLBytes(text, true, nil)
	if err != nil {
		return nil, nil, err
	}
	addService(resources)
	quiet := logging.DefaultLogger(io.Discard, egv1a1.LogLevelInfo)
	result, err := (&gatewayapi.Translator{
		GatewayControllerName:   string(resources.GatewayClass.Spec.ControllerName),
		GatewayClassName:        gwapiv1.ObjectName(resources.GatewayClass.Name),
		ControllerNamespace:     namespace,
		GlobalRateLimitEnabled:  true,
		EndpointRoutingDisabled: true,
		Logger:                  quiet,
	}).Translate(context.Background(), resources)
	if err != nil {
		return nil, nil, err
	}
	for _, policy := range result.BackendTrafficPolicies {
		for _, ancestor := range policy.Status.Ancestors {
			for _, condition := range ancestor.Conditions {
				if condition.Status != metav1.ConditionTrue {
					return nil, nil, fmt.Errorf("%s: %s is %s: %s", policy.Name, condition.Type, condition.Status, condition.Message)
				}
			}
		}
	}
	if len(result.XdsIR) != 1 {
		return nil, nil, fmt.Errorf("got %d gateways, want one", len(result.XdsIR))
	}
	var gateway *ir.Xds
	for _, gateway = range result.XdsIR {
		for _, config := range translator.BuildRateLimitServiceConfig(gateway.HTTP) {
			rules = append(rules, config)
		}
	}
	slices.SortFunc(rules, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	xds, err = toldEnvoy(settings, gateway, quiet)
	return rules, xds, err
}

// addService adds the objects of the rate limit service, which a cluster has besides.
func addService(resources *resource.Resources) {
	const name = "envoy-ratelimit"
	labels := map[string]string{"kubernetes.io/service-name": name}
	resources.Secrets = append(resources.Secrets, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "envoy"}})
	resources.Services = append(resources.Services, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 8081, Protocol: corev1.ProtocolTCP}}},
	})
	resources.EndpointSlices = append(resources.EndpointSlices, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: labels},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8081)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	})
}

// toldEnvoy returns the listener, the route and the cluster of the rate limit service.
func toldEnvoy(settings *egv1a1.EnvoyGateway, gateway *ir.Xds, logger logging.Logger) (xds []any, err error) {
	timeout, err := time.ParseDuration(string(*settings.RateLimit.Timeout))
	if err != nil {
		return nil, err
	}
	made, err := (&translator.Translator{
		ControllerNamespace: namespace,
		GlobalRateLimit: &translator.GlobalRateLimitSettings{
			ServiceURL: ratelimit.GetServiceURL(namespace, "cluster.local"), FailClosed: settings.RateLimit.FailClosed, Timeout: timeout,
		},
		Logger: logger,
	}).Translate(context.Background(), gateway)
	if err != nil {
		return nil, err
	}
	for _, wanted := range [][2]string{
		{resourcev3.ListenerType, "default/eg/http"}, {resourcev3.RouteType, "default/eg/http"}, {resourcev3.ClusterType, "ratelimit_cluster"},
	} {
		for _, m := range made.XdsResources[wanted[0]] {
			if named, ok := m.(interface{ GetName() string }); ok && named.GetName() == wanted[1] {
				xds = append(xds, m)
			}
		}
	}
	return xds, nil
}
