package main

import (
	"encoding/json"
	"errors"
	"fmt"

	gatewayv1alpha1 "github.com/envoyproxy/gateway/api/v1alpha1"
	contourv1 "github.com/projectcontour/contour/apis/projectcontour/v1"
	contourv1alpha1 "github.com/projectcontour/contour/apis/projectcontour/v1alpha1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istiov1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	kjson "sigs.k8s.io/json"
)

// Where the schemas of a project are: its module, and the path in it, up to the kind.
const (
	gatewaySchemas    = "github.com/envoyproxy/gateway charts/gateway-crds-helm/templates/generated/gateway.envoyproxy.io_"
	gatewayAPISchemas = "sigs.k8s.io/gateway-api config/crd/standard/gateway.networking.k8s.io_"
	contourSchemas    = "github.com/projectcontour/contour examples/contour/01-crds.yaml"
	istioSchemas      = "istio.io/api kubernetes/customresourcedefinitions.gen.yaml"
)

// A resource is how objects of one kind are read.
type resource struct {
	into   any           // the project's type
	spec   proto.Message // of Istio, whose types are those of their specs
	schema string        // file
}

// resourceOf returns how objects of a kind are read.
func resourceOf(o object) (resource, bool) {
	r, known := map[string]resource{
		"gateway.envoyproxy.io/v1alpha1 BackendTrafficPolicy": {
			into: new(gatewayv1alpha1.BackendTrafficPolicy), schema: gatewaySchemas + "backendtrafficpolicies.yaml",
		},
		"gateway.envoyproxy.io/v1alpha1 EnvoyPatchPolicy": {
			into: new(gatewayv1alpha1.EnvoyPatchPolicy), schema: gatewaySchemas + "envoypatchpolicies.yaml",
		},
		"gateway.networking.k8s.io/v1 GatewayClass":       {into: new(gwapiv1.GatewayClass), schema: gatewayAPISchemas + "gatewayclasses.yaml"},
		"gateway.networking.k8s.io/v1 Gateway":            {into: new(gwapiv1.Gateway), schema: gatewayAPISchemas + "gateways.yaml"},
		"gateway.networking.k8s.io/v1 HTTPRoute":          {into: new(gwapiv1.HTTPRoute), schema: gatewayAPISchemas + "httproutes.yaml"},
		"projectcontour.io/v1alpha1 ExtensionService":     {into: new(contourv1alpha1.ExtensionService), schema: contourSchemas},
		"projectcontour.io/v1alpha1 ContourConfiguration": {into: new(contourv1alpha1.ContourConfiguration), schema: contourSchemas},
		"projectcontour.io/v1 HTTPProxy":                  {into: new(contourv1.HTTPProxy), schema: contourSchemas},
		"networking.istio.io/v1alpha3 EnvoyFilter":        {into: new(istioObject), spec: new(istiov1alpha3.EnvoyFilter), schema: istioSchemas},
	}[o.APIVersion+" "+o.Kind]
	return r, known
}

// istioObject is an object of Istio around its spec.
type istioObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
}

// checkResource says what is wrong with a custom resource.
func checkResource(o object, text []byte) error {
	r, known := resourceOf(o)
	if !known {
		return fmt.Errorf("%s: nothing checks objects of this kind", o.APIVersion)
	}
	errs := strict(text, r.into)
	if of, ok := r.into.(*istioObject); ok {
		if err := protojson.Unmarshal(of.Spec, r.spec); err != nil {
			errs = append(errs, err)
		}
	}
	if err := holdAgainstSchema(r.schema, o, text); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// strict reads JSON as the API server does when it is told to be strict: unknown fields and those
// that stand twice are mistakes.
func strict(text []byte, into any) []error {
	mistakes, err := kjson.UnmarshalStrict(text, into)
	if err != nil {
		return []error{err}
	}
	return mistakes
}
