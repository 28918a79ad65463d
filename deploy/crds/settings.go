package main

import (
	"bytes"
	"errors"
	"fmt"

	gatewayv1alpha1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/api/v1alpha1/validation"
	"github.com/projectcontour/contour/pkg/config"
	"sigs.k8s.io/yaml"
)

// checkSettings says what is wrong with the settings that a ConfigMap holds. Other ConfigMaps hold
// rules, which are Weir's to judge.
func checkSettings(data map[string]string) error {
	var errs []error
	for name, text := range data {
		var err error
		switch name {
		case "envoy-gateway.yaml":
			err = checkEnvoyGateway([]byte(text))
		case "contour.yaml":
			err = checkContour([]byte(text))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// checkEnvoyGateway reads the settings of Envoy Gateway as it does when it starts.
func checkEnvoyGateway(text []byte) error {
	plain, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	settings := new(gatewayv1alpha1.EnvoyGateway)
	if errs := strict(plain, settings); len(errs) > 0 {
		return errors.Join(errs...)
	}
	if settings.Kind != gatewayv1alpha1.KindEnvoyGateway || settings.APIVersion != gatewayv1alpha1.GroupVersion.String() {
		return fmt.Errorf("got %s %s", settings.APIVersion, settings.Kind)
	}
	settings.SetEnvoyGatewayDefaults()
	return validation.ValidateEnvoyGateway(settings)
}

// checkContour reads the settings of Contour as it does when it starts.
func checkContour(text []byte) error {
	settings, err := config.Parse(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return settings.Validate()
}
